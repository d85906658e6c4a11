"""Sizes of a pi0.5 model, and how to read them from the shapes of a checkpoint's leaves."""

import dataclasses
import math
from collections.abc import Iterable, Mapping

from policy_server.errors import CheckpointError

IMAGE_KEYS: tuple[str, ...] = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
"""The three camera slots, in the order of their tokens in the prefix."""

_IMG = "PaliGemma/img"
_BLOCK = f"{_IMG}/Transformer/encoderblock"
_ATTN = "PaliGemma/llm/layers/attn"
_MLP = "PaliGemma/llm/layers/mlp"


@dataclasses.dataclass(frozen=True)
class SiglipConfig:
    """Sizes of the vision tower."""

    width: int
    depth: int
    mlp_dim: int
    num_heads: int
    patch_size: int = 14
    image_size: int = 224

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.width // self.num_heads

    @property
    def grid(self) -> int:
        """Patches along one side of an image."""
        return self.image_size // self.patch_size

    @property
    def num_tokens(self) -> int:
        """Tokens of one image."""
        return self.grid**2


@dataclasses.dataclass(frozen=True)
class GemmaConfig:
    """Sizes of one transformer expert; the two experts share depth, heads and head_dim."""

    width: int
    depth: int
    mlp_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclasses.dataclass(frozen=True)
class Pi05Config:
    """Sizes of the whole model; no leaf tells `action_horizon` and `max_token_len`."""

    siglip: SiglipConfig
    paligemma: GemmaConfig
    expert: GemmaConfig
    vocab_size: int
    action_dim: int
    action_horizon: int
    max_token_len: int

    def __post_init__(self) -> None:
        """Refuse experts that could not attend to each other."""
        shared = ("depth", "num_heads", "num_kv_heads", "head_dim")
        for name in shared:
            language, action = getattr(self.paligemma, name), getattr(self.expert, name)
            if language != action:
                raise CheckpointError(
                    f"--policy.dir holds a language expert with {name} {language} and an action "
                    f"expert with {name} {action}, which must be equal in pi0.5"
                )


PI05 = Pi05Config(
    siglip=SiglipConfig(width=1152, depth=27, mlp_dim=4304, num_heads=16),
    paligemma=GemmaConfig(
        width=2048, depth=18, mlp_dim=16384, num_heads=8, num_kv_heads=1, head_dim=256
    ),
    expert=GemmaConfig(
        width=1024, depth=18, mlp_dim=4096, num_heads=8, num_kv_heads=1, head_dim=256
    ),
    vocab_size=257_152,
    action_dim=32,
    action_horizon=50,
    max_token_len=200,
)
"""The released size: SigLIP So400m/14, Gemma 2B and the 300M action expert."""

_TINY_GEMMA = GemmaConfig(width=64, depth=4, mlp_dim=128, num_heads=8, num_kv_heads=1, head_dim=16)
TINY = Pi05Config(
    siglip=SiglipConfig(width=48, depth=3, mlp_dim=96, num_heads=4),
    paligemma=_TINY_GEMMA,
    expert=_TINY_GEMMA,
    vocab_size=2048,
    action_dim=32,
    action_horizon=50,
    max_token_len=200,
)
"""The size of the golden vectors and the demo: only image and prompt are as large as ever."""


def config_from_shapes(
    shapes: Mapping[str, tuple[int, ...]], *, action_horizon: int, max_token_len: int
) -> Pi05Config:
    """Read every size from the leaves' shapes; the rest of the tree is `check_tree`'s business.

    Args:
        shapes: Shape of each leaf by its path joined with "/", layers stacked along axis 0.
        action_horizon: Actions per chunk, which no leaf tells.
        max_token_len: Prompt length, which no leaf tells.

    Raises:
        CheckpointError: The tree is a pi0 model's, has LoRA leaves, lacks a leaf that tells a
            size, or its sizes contradict each other.
    """
    refuse_other_models(shapes)
    read = _ShapeReader(shapes)
    pos_embedding = read(f"{_IMG}/pos_embedding", 3)
    query = read(f"{_BLOCK}/MultiHeadDotProductAttention_0/query/kernel", 4)
    patch_size = read(f"{_IMG}/embedding/kernel", 4)[0]
    vocab_size, _ = read("PaliGemma/llm/embedder/input_embedding", 2)
    siglip = SiglipConfig(
        width=pos_embedding[-1],
        depth=query[0],
        mlp_dim=read(f"{_BLOCK}/MlpBlock_0/Dense_0/kernel", 3)[-1],
        num_heads=query[2],
        patch_size=patch_size,
        image_size=patch_size * math.isqrt(pos_embedding[1]),
    )
    return Pi05Config(
        siglip=siglip,
        paligemma=_gemma_config(read, suffix=""),
        expert=_gemma_config(read, suffix="_1"),
        vocab_size=vocab_size,
        action_dim=read("action_in_proj/kernel", 2)[0],
        action_horizon=action_horizon,
        max_token_len=max_token_len,
    )


def is_lora_leaf(path: str) -> bool:
    """Whether the leaf belongs to a LoRA adapter (openpi names them lora_a, w_lora_b and so on)."""
    return path.rsplit("/", 1)[-1].endswith(("lora_a", "lora_b"))


class _ShapeReader:
    """Looks a leaf's shape up and insists on its rank."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._shapes = shapes

    def __call__(self, path: str, ndim: int) -> tuple[int, ...]:
        shape = self._shapes.get(path)
        if shape is None:
            raise CheckpointError(
                f"--policy.dir is not a pi0.5 checkpoint: its params have no leaf {path}"
            )
        if len(shape) != ndim or 0 in shape:
            raise CheckpointError(
                f"--policy.dir is not a pi0.5 checkpoint: leaf {path} has shape {shape}, "
                f"expected {ndim} dimensions"
            )
        return shape


def _gemma_config(read: _ShapeReader, suffix: str) -> GemmaConfig:
    """Sizes of the expert whose leaves end in `suffix`."""
    depth, num_heads, width, head_dim = read(f"{_ATTN}/q_einsum{suffix}/w", 4)
    return GemmaConfig(
        width=width,
        depth=depth,
        mlp_dim=read(f"{_MLP}{suffix}/linear", 3)[1],
        num_heads=num_heads,
        num_kv_heads=read(f"{_ATTN}/kv_einsum{suffix}/w", 5)[2],
        head_dim=head_dim,
    )


def refuse_other_models(paths: Iterable[str]) -> None:
    """Name the models that share most of pi0.5's leaves and would serve wrong actions.

    Raises:
        CheckpointError: The leaves' paths are those of a pi0 model, or have LoRA leaves.
    """
    paths = list(paths)
    if any(path.startswith(("state_proj/", "action_time_mlp_")) for path in paths):
        raise CheckpointError(
            "--policy.dir holds a pi0 checkpoint (it has state_proj or action_time_mlp leaves); "
            "this server serves pi0.5 only"
        )
    lora = [path for path in paths if is_lora_leaf(path)]
    if lora:
        raise CheckpointError(
            f"--policy.dir holds {len(lora)} LoRA leaves such as {lora[0]}; serving without them "
            "would give wrong actions, so merge the adapters into the weights first"
        )
