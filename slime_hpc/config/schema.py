"""The experiment file: what to train, on what, and how. Pydantic models, frozen, no unknown keys.

The descriptions are what `slime-hpc explain KEY` prints. Knows nothing of clusters, and reads no file.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from slime_hpc.config.algorithms import WITH_CRITIC, AdvantageName, CorrectionName, KlName, LossName, ReducerName

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
TimeLimit = Annotated[str, Field(pattern=r"^([0-9]+-[0-9]+(:[0-9]+){0,2}|[0-9]+(:[0-9]+){0,2})$")]
"""sbatch(1) --time: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds."""
Mount = Annotated[str, Field(pattern=r"^[^:,]+:[^:,]+(:[^:,]+)?$")]
"""host:container[:flags]; a comma separates mounts on the command line of some runtimes, so none can be in a path."""


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}.") from error
    return pattern


Regex = Annotated[str, AfterValidator(_compiles)]


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
    request_retries: NonNegative = Field(default=5, description="Times a failed request is sent again before the run fails.")
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
        description="'grpo': (r - mean) / (std + eps) within the group of a prompt; 'dr_grpo': r - mean; 'rloo': r - mean of the "
        "siblings; 'reinforce_plus_plus': whitened returns; 'reinforce_plus_plus_baseline': whitened r - mean; 'gae': of a critic's "
        "values (PPO; needs [critic]); 'none': 0, for a [teacher] alone, or for loss = 'sft'; "
        "or 'module:attribute', a slime_hpc.algo.advantage.Advantage.",
    )
    normalize_std: bool = Field(default=True, description="GRPO: divide by the group's standard deviation (off: Dr. GRPO).")
    whiten: bool = Field(
        default=False, description="Whiten advantages over all trained tokens of the batch; the REINFORCE++ variants do so in any case."
    )
    gamma: float = Field(default=1.0, gt=0, le=1, description="Discount from token to token ('reinforce_plus_plus' and 'gae').")
    gae_lambda: float = Field(
        default=1.0, ge=0, le=1, description="'gae': 1 trusts the rewards alone (no bias), 0 the critic alone (least variance)."
    )
    loss: LossName = Field(
        default="ppo_clip",
        description="The policy loss: 'ppo_clip', 'gspo' (the ratio of whole answers; clips of about 4e-4), 'cispo' (the clipped ratio as "
        "a weight; clip_low = 1, clip_high about 4), 'sft' (-log p, whatever the reward), or 'module:function' of your own.",
    )
    clip_low: float = Field(default=0.2, ge=0, le=1, description="Lower clip of the importance ratio: 1 - clip_low.")
    clip_high: float = Field(default=0.2, ge=0, description="Upper clip of the importance ratio: 1 + clip_high.")
    dual_clip: float = Field(
        default=0.0, ge=0, description="Largest ratio that a negative advantage is multiplied with, above 1, e.g. 3; 0 = no such bound."
    )
    old_logprobs: Literal["trainer", "engine", "generator"] = Field(
        default="trainer",
        description="Log-probs that the importance ratio divides by: 'trainer': of the weights before the step; 'engine': as it reported "
        "them; 'generator': by the trainer, of the weights that drew the answer, which it keeps (asynchronous runs).",
    )
    kept_versions: NonNegative = Field(
        default=1, description="Past versions of the weights that old_logprobs = 'generator' keeps in host memory: the largest staleness."
    )
    loss_mean: ReducerName = Field(
        default="sample",
        description="'sample': mean over each answer's tokens, then over answers; 'rollout': the same, where samples of one prompt with "
        "one index count as one answer; 'token': over all tokens; 'constant': each answer's sum divided by `loss_length`, then the mean "
        "over answers (Dr. GRPO); or 'module:function' of your own.",
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
    route_replay: bool = Field(
        default=False,
        description="Mixture of experts: each token goes to the experts that the engine sent it to (R3), in all passes of the policy.",
    )
    route_replay_compare: bool = Field(
        default=False, description="Also measure the log-probs' difference from the engine's without the replay, by one more pass a step."
    )
    options: dict[str, Any] = Field(default_factory=dict, description="For functions of your own, which get this whole table.")

    @model_validator(mode="after")
    def _consistent(self) -> Algorithm:
        if 0 < self.dual_clip <= 1:
            raise ValueError("'dual_clip' must be above 1, or 0 for none.")
        if self.route_replay_compare and not self.route_replay:
            raise ValueError("'route_replay_compare' compares with the replay: set 'route_replay', or remove it.")
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


class Critic(Section):
    """The value model of PPO, on the trainer's own ranks: it begins as the policy does, with one output instead of the vocabulary."""

    optimizer: Optimizer = Field(default_factory=lambda: Optimizer(lr=1e-5), description="Optimizer of the critic.")
    value_clip: float = Field(
        default=0.2,
        ge=0,
        description="How far a value may gain by moving in one step (PPO's clipped value loss); 0 = any distance.",
    )
    warmup_steps: NonNegative = Field(default=0, description="First steps, in which the critic alone is trained.")


class Teacher(Section):
    """On-policy distillation: a model of the same tokenizer, whose log-probs of the policy's own tokens are added to the advantage."""

    path: str = Field(description="Hugging Face folder of the teacher, of any size the trainer's parallel sizes divide.")
    coef: float = Field(
        default=1.0, gt=0, description="Weight of log teacher - log policy in a token's advantage: the reverse KL divergence, sampled."
    )


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
    context_parallel: Positive = Field(default=1, description="Context-parallel size: ranks that share each sequence between them.")
    expert_parallel: Positive = Field(default=1, description="Expert-parallel size: ranks that share the experts of a layer between them.")
    expert_tensor_parallel: Positive = Field(default=1, description="Tensor-parallel size of each expert.")
    sequence_parallel: bool = Field(
        default=False,
        description="Split activations along the sequence between tensor-parallel ranks; experts with tensor_parallel > 1 need it.",
    )
    tokens_per_gpu: Positive = Field(
        default=9216, description="Most tokens of a packed micro-batch on one rank; context-parallel ranks share one that is larger."
    )
    updates_per_step: Positive = Field(default=1, description="Optimizer updates per batch; must divide rollout.prompts_per_step.")
    max_skipped_updates: NonNegative = Field(
        default=3,
        description="Updates in a row that are skipped because their loss or gradient is NaN or infinite; one more ends the run.",
    )
    recompute: bool = Field(default=False, description="Recompute activations in the backward pass.")
    freeze: list[Regex] = Field(
        default_factory=list,
        description="Regular expressions; a weight stays as it is when one is found in its Hugging Face name, e.g. 'mlp.gate.weight$'. "
        "Those that Megatron holds in one tensor stay together: q, k and v; gate and up.",
    )
    threads: NonNegative = Field(default=0, description="CPU threads of a rank; 0 = the rank's share of its node.")
    optimizer: Optimizer = Field(default_factory=Optimizer, description="Optimizer of the RL steps.")
    megatron: dict[str, Any] = Field(
        default_factory=dict, description="Passed through to Megatron's TransformerConfig, or OptimizerConfig: to that which has the key."
    )

    @property
    def model_ranks(self) -> int:
        """Ranks that hold one replica of the model, or share its sequences."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel

    @property
    def tokens_per_pack(self) -> int:
        """Most tokens of a micro-batch over all its context-parallel ranks."""
        return self.tokens_per_gpu * self.context_parallel


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
    bucket_mib: float = Field(default=512, gt=0, description="Size of a bucket.")
    timeout_s: float = Field(default=300.0, gt=0, description="A push that takes longer fails, with the engine's own words.")
    quantization: Literal["none", "fp8_block"] = Field(
        default="none",
        description="What the engines compute with: the model's dtype, or float8 weights with one scale for each block of 128 x 128 "
        "('fp8_block'; converted before they are sent; not for the transports 'disk' and 'delta').",
    )
    pause: Literal["abort", "retract", "in_place"] = Field(
        default="abort",
        description="What a push does with answers that are being generated: end them, put them back and compute their cache anew, or hold "
        "them where they are. With the last two, answers mix tokens of two versions, and an engine that holds such keeps its prefix cache.",
    )
    verify: bool = Field(default=False, description="After each push compare greedy log-probs of a fixed prompt, trainer against engines.")
    verify_tolerance: float = Field(default=1e-3, gt=0, description="Largest difference of a log-prob that `verify` accepts.")

    @model_validator(mode="after")
    def _consistent(self) -> Sync:
        if self.quantization != "none" and self.transport not in ("distributed", "ipc"):
            raise ValueError(f"'quantization' is for the transports 'distributed' and 'ipc'; {self.transport!r} sends the model's dtype.")
        return self


class Checkpoint(Section):
    """When training state is saved."""

    interval: NonNegative = Field(default=20, description="Save every so many steps, and after the last; 0 = only after the last.")
    keep: Positive = Field(default=3, description="Newest checkpoints to keep.")
    asynchronous: bool = Field(
        default=False, description="Write them in processes of their own while training goes on; memory for a copy of the state is needed."
    )


class Failure(Section):
    """What happens when a part of a running job dies or hangs; what is wrong with the experiment itself is never tried again."""

    controller_restarts: NonNegative = Field(default=3, description="How often an attempt starts its controller again.")
    router_restarts: NonNegative = Field(default=3, description="How often an attempt starts its router again.")
    engine_restarts: NonNegative = Field(default=3, description="How often an attempt starts each engine again.")
    trainer_restarts: NonNegative = Field(
        default=3, description="How often an attempt starts its trainer again, from the newest checkpoint."
    )
    engine_silence_s: float = Field(
        default=300.0,
        gt=0,
        description="An engine that is asked for a token and gives none for so long is started again; not with rollout.colocate, "
        "where an engine may not be asked while the trainer has the GPU.",
    )
    stall_s: float = Field(default=7200.0, gt=0, description="A run in which nothing happens for so long is ended.")


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
    critic: Critic | None = Field(default=None, description="The critic; algorithm.advantage = 'gae' needs it.")
    teacher: Teacher | None = Field(default=None, description="A teacher to distil from.")
    warm_start: WarmStart | None = Field(default=None, description="Supervised start.")
    trainer: Trainer = Field(default_factory=Trainer, description="Training.")
    sync: Sync = Field(default_factory=Sync, description="Weight transfer.")
    checkpoint: Checkpoint = Field(default_factory=Checkpoint, description="Checkpoints.")
    failure: Failure = Field(default_factory=Failure, description="Parts that die or hang.")
    slurm: SlurmJob = Field(default_factory=SlurmJob, description="The Slurm job.")
    container: Container = Field(default_factory=Container, description="The container.")

    @model_validator(mode="after")
    def _critic_is_used(self) -> Experiment:
        advantage = self.algorithm.advantage
        if advantage in WITH_CRITIC and self.critic is None:
            raise ValueError(f"algorithm.advantage = {advantage!r} needs the table [critic], which may be empty.")
        if self.critic is not None and advantage not in WITH_CRITIC and ":" not in advantage:
            raise ValueError(f"algorithm.advantage = {advantage!r} does not use [critic]: remove the table, or set 'gae'.")
        return self
