"""Dr. GRPO: an answer compared with its siblings, without the division by their spread (Liu et al. 2025, arXiv:2503.20783, section 3.2).

The other half of the paper, no division by an answer's length, is `loss_mean = "constant"`.
"""

from __future__ import annotations

from slime_hpc.algo.advantage import Advantage
from slime_hpc.algo.reinforce import baseline

DR_GRPO = Advantage(baseline)
