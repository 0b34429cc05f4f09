"""What this machine and its cluster say of themselves: a draft of a topology file, and a preflight. Changes nothing but a canary file."""
