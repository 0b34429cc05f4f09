"""The experiment file: what to train, on what, and how. Pydantic models, frozen, no unknown keys.

The descriptions are what `slime-hpc explain KEY` prints. Knows nothing of clusters, and reads no file.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from slime_hpc.config.algorithms import AdvantageName, CorrectionName, KlName, LossName

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
TimeLimit = Annotated[str, Field(pattern=r"^([0-9]+-[0-9]+(:[0-9]+){0,2}|[0-9]+(:[0-9]+){0,2})$")]
"""sbatch(1) --time: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds."""
Mount = Annotated[str, Field(pattern=r"^[^:,]+:[^:,]+(:[^:,]+)?$")]
"""host:container[:flags]; a comma separates mounts on the command line of some runtimes, so none can be in a path."""


class Section(BaseModel):
    """A table of the experiment file: frozen, closed to unknown keys, and without conversions: 2 is no text, true is no number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Model(Section):
    """The language model: a Hugging Face folder."""

    path: str = Field(description="Folder with config.json, the tokenizer and (unless init = 'random') safetensors weights.")
    init: Literal["pretrained", "random"] = Field(
        default="pretrained",
        description="'pretrained' reads the folder's weights; 'random' draws them from `seed` (config.json and tokenizer suffice).",
    )
    dtype: Literal["float32", "bfloat16"] = Field(default="bfloat16", description="Type of the parameters in trainer and engines.")
    prepare: str | None = Field(
        default=None,
        description="'module:function' that makes the folder when it is missing; `slime-hpc recipes prepare NAME` runs it.",
    )


class PromptOrigin(Section):
    """Prompts from a file or from code: exactly one of `prompts` and `source`."""

    prompts: str | None = Field(default=None, description="JSONL or Parquet file, one prompt a line.")
    source: str | None = Field(default=None, description="'module:function'; called with `options`, returns a sequence of Prompt.")
    options: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of `source`.")

    @model_validator(mode="after")
    def _exactly_one(self) -> PromptOrigin:
        if (self.prompts is None) == (self.source is None):
            raise ValueError("Give exactly one of 'prompts' and 'source'.")
        return self


class Data(PromptOrigin):
    """Where training prompts come from."""

    prompt_key: str = Field(default="prompt", description="Field of a line that holds the prompt: a string, or a list of chat messages.")
    answer_key: str = Field(default="answer", description="Field of a line that holds the reference answer; rewards see it.")
    chat: bool = Field(default=False, description="Put the prompt through the tokenizer's chat template.")
    shuffle: bool = Field(default=True, description="Shuffle anew in every epoch, from `seed`.")


class Evaluation(PromptOrigin):
    """Held-out problems, never trained on: pass rate before the first and after the last step."""

    interval: NonNegative = Field(default=0, description="Also evaluate every so many steps; 0 = only before and after.")
    limit: NonNegative = Field(default=0, description="Use only the first so many problems; 0 = all.")
    temperature: float = Field(default=0.0, ge=0.0, description="Sampling temperature; 0 = greedy.")


class RolloutGroup(Section):
    """Engines of one kind and one size."""

    kind: Literal["regular", "prefill", "decode"] = Field(default="regular", description="What the engines do.")
    engines: Positive = Field(default=1, description="Number of engines.")
    gpus_per_engine: Positive = Field(default=1, description="GPUs (on a CPU cluster: processes) of an engine = its tensor-parallel size.")
    nodes: NonNegative = Field(default=0, description="Nodes for this group; 0 = as few as hold the engines.")


class Rollout(Section):
    """How answers are generated."""

    prompts_per_step: Positive = Field(default=32, description="Prompt groups in a batch.")
    samples_per_prompt: Positive = Field(default=8, description="Answers to each prompt: the group of GRPO.")
    max_tokens: Positive = Field(default=1024, description="Most new tokens in an answer.")
    temperature: float = Field(default=1.0, gt=0.0, description="Sampling temperature; the trainer scales its logits alike.")
    top_p: float = Field(default=1.0, gt=0.0, le=1.0, description="Nucleus sampling; log-probs compare with the trainer's only at 1.")
    stop: list[str] = Field(default_factory=list, description="Strings that end an answer.")
    concurrency: Positive = Field(default=256, description="Requests in flight at the router.")
    request_timeout_s: float = Field(default=600.0, gt=0, description="Deadline of one request; then it is sent again.")
    request_retries: NonNegative = Field(default=3, description="Times a failed request is sent again before the run fails.")
    colocate: bool = Field(
        default=False,
        description="Engine and trainer take turns on one GPU: the engine gives its memory up while the trainer trains.",
    )
    mode: Literal["sync"] = Field(default="sync", description="'sync': generate, train, push, in turn.")
    groups: list[RolloutGroup] = Field(default_factory=lambda: [RolloutGroup()], min_length=1, description="Groups of engines.")
    router_policy: Literal["round_robin", "random", "cache_aware", "power_of_two"] = Field(
        default="cache_aware", description="How sglang-router spreads requests."
    )
    context_length: NonNegative = Field(default=0, description="Longest prompt + answer an engine takes; 0 = the model's own limit.")
    sglang: dict[str, Any] = Field(default_factory=dict, description="Passed through to SGLang's ServerArgs (names with underscores).")


class Reward(Section):
    """How answers are scored."""

    kind: str = Field(default="math", description="'math', 'exact', 'reasoning_gym', or 'module:function' of your own.")
    options: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the reward.")
    timeout_s: float = Field(default=30.0, gt=0, description="An answer whose scoring takes longer gets 0 and is marked.")


class Correction(Section):
    """What is done about tokens that the engine drew with another probability than the trainer gives them; rho = trainer's / engine's."""

    kind: CorrectionName = Field(
        default="none",
        description="Weight of a token's policy loss: 'none', 'tis' (rho, at most `high`), 'icepop' (rho, 0 outside `low` .. `high`), "
        "'importance' (rho at `level`, bounded as `mode` says), or 'module:function' of your own.",
    )
    level: Literal["token", "sequence", "geometric"] = Field(
        default="token", description="rho of 'importance': the token's, its whole answer's, or the answer's geometric mean over tokens."
    )
    mode: Literal["truncate", "clip", "mask"] = Field(
        default="truncate", description="Bounds of 'importance': at most `high`, within `low` .. `high`, or 0 outside of them."
    )
    low: float = Field(default=0.5, ge=0, description="Lower bound of rho.")
    high: float = Field(default=2.0, gt=0, description="Upper bound of rho; for a geometric mean something like 1.0001.")
    reject: Literal["none", "token", "sequence", "geometric"] = Field(
        default="none", description="Give no policy loss to tokens whose rho, at this level, is outside `reject_low` .. `reject_high`."
    )
    reject_low: float = Field(default=0.5, ge=0, description="Lower bound of `reject`.")
    reject_high: float = Field(default=2.0, gt=0, description="Upper bound of `reject`.")
    veto: float = Field(default=0.0, ge=0, lt=1, description="Reject answers that have a token with rho below this, e.g. 1e-4; 0 = off.")
    off_policy_kl: float = Field(
        default=0.0,
        ge=0,
        description="Reject answers with a negative advantage and a mean log(engine's / current) above this (DeepSeek-V3.2); 0 = off.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Correction:
        for low, high in (("low", "high"), ("reject_low", "reject_high")):
            if getattr(self, low) > getattr(self, high):
                raise ValueError(f"'{low}' = {getattr(self, low)} is above '{high}' = {getattr(self, high)}.")
        return self


class Algorithm(Section):
    """From rewards to a loss."""

    advantage: AdvantageName = Field(
        default="grpo",
        description="'grpo': (r - mean) / (std + eps) within the group of a prompt; 'rloo': r - mean of the siblings; "
        "'reinforce_plus_plus': whitened returns; 'reinforce_plus_plus_baseline': whitened r - mean; "
        "or 'module:attribute', a slime_hpc.algo.advantage.Advantage.",
    )
    normalize_std: bool = Field(default=True, description="GRPO: divide by the group's standard deviation (off: Dr. GRPO).")
    whiten: bool = Field(
        default=False, description="Whiten advantages over all trained tokens of the batch; the REINFORCE++ variants do so in any case."
    )
    gamma: float = Field(default=1.0, gt=0, le=1, description="Discount of returns from token to token (reinforce_plus_plus).")
    loss: LossName = Field(
        default="ppo_clip",
        description="The policy loss: 'ppo_clip', 'gspo' (the ratio of whole answers; clips of about 4e-4), 'cispo' (the clipped ratio as "
        "a weight; clip_low = 1, clip_high about 4), or 'module:function' of your own.",
    )
    clip_low: float = Field(default=0.2, ge=0, le=1, description="Lower clip of the importance ratio: 1 - clip_low.")
    clip_high: float = Field(default=0.2, ge=0, description="Upper clip of the importance ratio: 1 + clip_high.")
    dual_clip: float = Field(
        default=0.0, ge=0, description="Largest ratio that a negative advantage is multiplied with, above 1, e.g. 3; 0 = no such bound."
    )
    old_logprobs: Literal["trainer", "engine"] = Field(
        default="trainer", description="Whose log-probs of the old policy the importance ratio divides by."
    )
    loss_mean: Literal["sample", "token", "constant"] = Field(
        default="sample",
        description="'sample': mean over each answer's tokens, then over answers; 'token': over all tokens; "
        "'constant': each answer's sum divided by `loss_length`, then the mean over answers (Dr. GRPO).",
    )
    loss_length: NonNegative = Field(default=0, description="Divisor of loss_mean = 'constant'; 0 = rollout.max_tokens.")
    kl_coef: float = Field(default=0.0, ge=0, description="Weight of the KL term against the reference model; 0 = no reference model.")
    kl_estimator: KlName = Field(
        default="k3", description="KL estimator (Schulman 2020): 'k1', 'k2', 'k3', 'low_var_kl' (k3, at most 10), or 'module:function'."
    )
    kl_in: Literal["loss", "reward"] = Field(
        default="loss", description="Add the KL term to the loss, or take it off the tokens' rewards before advantages."
    )
    kl_unbiased: bool = Field(
        default=False, description="Weigh the KL term of the loss by the importance ratio, so that its gradient is unbiased."
    )
    entropy_coef: float = Field(default=0.0, ge=0, description="Weight of the entropy bonus.")
    correction: Correction = Field(default_factory=Correction, description="Correction of the mismatch between trainer and engines.")
    options: dict[str, Any] = Field(default_factory=dict, description="For functions of your own, which get this whole table.")

    @model_validator(mode="after")
    def _consistent(self) -> Algorithm:
        if 0 < self.dual_clip <= 1:
            raise ValueError("'dual_clip' must be above 1, or 0 for none.")
        if self.kl_unbiased and self.kl_in == "reward":
            raise ValueError("'kl_unbiased' weighs the KL term of the loss; with kl_in = 'reward' there is none.")
        if self.old_logprobs == "engine" and self.correction.kind != "none":
            raise ValueError("With old_logprobs = 'engine' the ratio corrects for the engine already: set correction.kind = 'none'.")
        return self


class Optimizer(Section):
    """AdamW, through Megatron's optimizer."""

    lr: float = Field(default=1e-6, ge=0, description="Learning rate.")
    warmup_steps: NonNegative = Field(default=0, description="Steps of linear warm-up.")
    decay: Literal["constant", "linear"] = Field(default="constant", description="Course of the learning rate after the warm-up.")
    final_fraction: Fraction = Field(default=0.1, description="Learning rate at the end of a linear decay, as a fraction of `lr`.")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW's first decay.")
    beta2: float = Field(default=0.95, ge=0, lt=1, description="AdamW's second decay.")
    eps: float = Field(default=1e-8, gt=0, description="AdamW's epsilon.")
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's weight decay.")
    clip_grad: float = Field(default=1.0, ge=0, description="Largest gradient norm; 0 = no clipping.")


class WarmStart(Section):
    """Supervised fine-tuning before the first RL step, reported apart from it."""

    source: str = Field(description="'module:function'; called with `options`, returns a sequence of Demonstration.")
    options: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of `source`.")
    steps: Positive = Field(default=100, description="Optimizer steps.")
    samples_per_step: Positive = Field(default=128, description="Demonstrations in a step.")
    optimizer: Optimizer = Field(default_factory=Optimizer, description="Optimizer of the warm start; its state is dropped afterwards.")


class Trainer(Section):
    """Megatron-core's share."""

    nodes: Positive = Field(default=1, description="Nodes of the trainer.")
    gpus_per_node: NonNegative = Field(
        default=0,
        description="GPUs (CPU cluster: ranks) on each of them; 0 = all the node has, on a CPU cluster as few as the parallel sizes need.",
    )
    tensor_parallel: Positive = Field(default=1, description="Tensor-parallel size.")
    pipeline_parallel: Positive = Field(default=1, description="Pipeline-parallel size.")
    sequence_parallel: bool = Field(default=False, description="Split activations along the sequence between tensor-parallel ranks.")
    tokens_per_gpu: Positive = Field(default=9216, description="Most tokens in a packed micro-batch.")
    updates_per_step: Positive = Field(default=1, description="Optimizer updates per batch; must divide rollout.prompts_per_step.")
    max_skipped_updates: NonNegative = Field(
        default=3,
        description="Updates in a row that are skipped because their loss or gradient is NaN or infinite; one more ends the run.",
    )
    recompute: bool = Field(default=False, description="Recompute activations in the backward pass.")
    threads: NonNegative = Field(default=0, description="CPU threads of a rank; 0 = the rank's share of its node.")
    optimizer: Optimizer = Field(default_factory=Optimizer, description="Optimizer of the RL steps.")
    megatron: dict[str, Any] = Field(default_factory=dict, description="Passed through to Megatron's TransformerConfig.")


class Delta(Section):
    """sync.transport = 'delta'."""

    encoding: Literal["gaps", "xor"] = Field(
        default="gaps",
        description="How a change is written: 'gaps' between changed elements, and by how much; 'xor' of all bits. Both through zstd.",
    )
    full_interval: Positive = Field(
        default=20, description="Every so many versions one is full: a node that starts late applies at most so many, less one, deltas."
    )
    local: str = Field(
        default="",
        description="Folder on every node of engines for its copy of the weights, as large as the model: a local disk, or /dev/shm for "
        "memory; default: $TMPDIR, else /tmp.",
    )


class Sync(Section):
    """How weights go from trainer to engines."""

    transport: Literal["distributed", "disk", "ipc", "delta"] = Field(
        default="distributed",
        description="'distributed': a process group (NCCL, on CPU gloo) in flat buckets; 'disk': a full checkpoint that engines load; "
        "'ipc': handles of flat buckets in the memory of the one GPU that trainer and engine share, for rollout.colocate; 'delta': what "
        "changed since the last version, through files that each node of engines applies to a copy of its own.",
    )
    delta: Delta = Field(default_factory=Delta, description="Of transport = 'delta'.")
    bucket_mib: Positive = Field(default=512, description="Size of a bucket.")
    timeout_s: float = Field(default=300.0, gt=0, description="A push that takes longer fails, with the engine's own words.")
    verify: bool = Field(default=False, description="After each push compare greedy log-probs of a fixed prompt, trainer against engines.")
    verify_tolerance: float = Field(default=1e-3, gt=0, description="Largest difference of a log-prob that `verify` accepts.")


class Checkpoint(Section):
    """When training state is saved."""

    interval: NonNegative = Field(default=20, description="Save every so many steps, and after the last; 0 = only after the last.")
    keep: Positive = Field(default=3, description="Newest checkpoints to keep.")


class SlurmJob(Section):
    """What the job asks of Slurm."""

    account: str | None = Field(default=None, description="Account to charge.")
    partition: str | None = Field(default=None, description="Partition; default: the topology's.")
    qos: str | None = Field(default=None, description="Quality of service.")
    time: TimeLimit | None = Field(default=None, description="Time limit, [days-]hours:minutes:seconds; default: the topology's.")
    max_requeues: NonNegative = Field(
        default=10, description="How often the job goes back into the queue by itself, before its time limit or preempted; 0 = never."
    )
    extra: list[str] = Field(default_factory=list, description="More #SBATCH directives, e.g. '--reservation=x'.")


class Container(Section):
    """The image the roles run in."""

    runtime: Literal["none", "apptainer", "pyxis", "enroot"] | None = Field(
        default=None, description="Container runtime; default: the topology's."
    )
    image: str | None = Field(default=None, description="Image file, or registry reference where the runtime takes one.")
    mounts: list[Mount] = Field(default_factory=list, description="More bind mounts, host:container[:ro].")


class Experiment(Section):
    """One training run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="Name of the run; the job's name and a folder's.")
    steps: Positive = Field(default=100, description="RL steps.")
    seed: int = Field(default=0, ge=0, description="Seed of prompts, sampling and random weights.")
    deterministic: bool = Field(
        default=True, description="Seed every request, and use deterministic kernels, so that a run can be repeated."
    )
    topology: str = Field(default="local", description="Name or path of the topology file.")
    runs: str = Field(default="runs", description="Folder of run folders, on the shared file system.")
    model: Model = Field(description="The language model.")
    data: Data = Field(description="Training prompts.")
    eval: Evaluation | None = Field(default=None, description="Held-out problems.")
    rollout: Rollout = Field(default_factory=Rollout, description="Generation.")
    reward: Reward = Field(default_factory=Reward, description="Scoring.")
    algorithm: Algorithm = Field(default_factory=Algorithm, description="Advantage and loss.")
    warm_start: WarmStart | None = Field(default=None, description="Supervised start.")
    trainer: Trainer = Field(default_factory=Trainer, description="Training.")
    sync: Sync = Field(default_factory=Sync, description="Weight transfer.")
    checkpoint: Checkpoint = Field(default_factory=Checkpoint, description="Checkpoints.")
    slurm: SlurmJob = Field(default_factory=SlurmJob, description="The Slurm job.")
    container: Container = Field(default_factory=Container, description="The container.")
