"""Who is who among the training ranks, as Megatron-Core numbers them: tensor, context, (expert,) data, pipeline, fastest first."""

from dataclasses import dataclass
from functools import cached_property

from tandem.config.checks import world_size
from tandem.config.schema import Config


@dataclass(frozen=True)
class Group:
    """Ranks r, r + stride, ..., `size` of them."""

    size: int
    stride: int

    def place(self, rank: int) -> int:
        return rank // self.stride % self.size

    def off_node_share(self, devices_per_node: int) -> float:
        """Of a rank's partners in the group, the share on other nodes; mean over the ranks of a block."""
        if self.size == 1:
            return 0.0
        span = self.stride * self.size
        whole = span if span % devices_per_node else max(span, devices_per_node)
        nodes = [[(base + k * self.stride) // devices_per_node for k in range(self.size)] for base in self._bases(whole)]
        pairs = [(a != b) for members in nodes for i, a in enumerate(members) for j, b in enumerate(members) if i != j]
        return sum(pairs) / len(pairs)

    def _bases(self, num_ranks: int) -> list[int]:
        return [rank for rank in range(num_ranks) if self.place(rank) == 0]


@dataclass(frozen=True)
class Layout:
    """Sizes of a legal layout."""

    world: int
    devices_per_node: int
    tp: int
    pp: int
    vpp: int  # 1 without interleaving
    cp: int
    ep: int
    etp: int

    @classmethod
    def of(cls, config: Config) -> "Layout":
        p = config.parallel
        return cls(world_size(config), config.trainer.devices_per_node, p.tp, p.pp, p.vpp or 1, p.cp, p.ep, p.etp)

    @property
    def dp(self) -> int:
        return self.world // (self.tp * self.pp * self.cp)

    @property
    def expert_dp(self) -> int:
        return self.world // (self.etp * self.ep * self.pp)

    @cached_property
    def groups(self) -> dict[str, Group]:
        """`dp` with `cp` is the group over which the optimizer of dense weights is sharded."""
        return {
            "tp": Group(self.tp, 1),
            "cp": Group(self.cp, self.tp),
            "dp": Group(self.dp, self.tp * self.cp),
            "dp_cp": Group(self.dp * self.cp, self.tp),
            "pp": Group(self.pp, self.world // self.pp),
            "etp": Group(self.etp, 1),
            "ep": Group(self.ep, self.etp),
            "expert_dp": Group(self.expert_dp, self.etp * self.ep),
        }

    def place(self, group: str, rank: int) -> int:
        return self.groups[group].place(rank)

    def rank_of_stage(self, stage: int) -> int:
        """The first rank of a pipeline stage."""
        return stage * self.world // self.pp

    def chunks(self, stage: int, num_layers: int) -> list[range]:
        """Layers of each model chunk of a stage: virtual stage v of pipeline stage s is number v * pp + s of the whole pipeline."""
        length = num_layers // (self.pp * self.vpp)
        return [range(at := (v * self.pp + stage) * length, at + length) for v in range(self.vpp)]
