"""Reading a Hugging Face folder tensor by tensor: sharded or not, experts fused or one by one."""

import json
import re
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from tandem.errors import UserError

_EXPERT = re.compile(r"^(?P<layer>.*\.mlp\.experts)\.(?P<expert>\d+)\.(?P<part>gate|up|down)_proj\.weight$")


class HuggingFaceFolder:
    """Tensors by name; files stay mapped, so that no more than the tensors asked for are read."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        index = self.path / "model.safetensors.index.json"
        if index.exists():
            self.file_of: dict[str, str] = json.loads(index.read_text())["weight_map"]
        else:
            self.file_of = dict.fromkeys(self._open("model.safetensors").keys(), "model.safetensors")
        self._files: dict[str, safe_open] = {}

    def _open(self, name: str):
        try:
            return safe_open(self.path / name, "pt")
        except (OSError, SafetensorError) as error:
            raise UserError(f"cannot read {self.path / name}", str(error), "copy the model folder again, complete") from error

    def _file(self, name: str):
        file = self.file_of[name]
        if file not in self._files:
            self._files[file] = self._open(file)
        return self._files[file]

    def names(self) -> set[str]:
        """Names of all tensors of the model proper, experts one by one; multi-token-prediction tensors (`mtp.`) are not part of it."""
        names = set()
        for name in self.file_of:
            if name.startswith("mtp."):
                continue
            prefix, _, last = name.rpartition(".")
            if prefix.endswith(".mlp.experts") and last in ("gate_up_proj", "down_proj"):
                num_experts = self._file(name).get_slice(name).get_shape()[0]
                parts = ("down",) if last == "down_proj" else ("gate", "up")
                names |= {f"{prefix}.{expert}.{part}_proj.weight" for expert in range(num_experts) for part in parts}
            else:
                names.add(name)
        return names

    def get(self, name: str) -> Tensor:
        """The tensor, on the CPU. One expert's matrix is cut out of the fused tensor where the folder stores it so."""
        if name in self.file_of:
            return self._file(name).get_tensor(name)
        match = _EXPERT.match(name)
        if match:
            fused = f"{match['layer']}.{'down_proj' if match['part'] == 'down' else 'gate_up_proj'}"
            if fused in self.file_of:
                matrix = self._file(fused).get_slice(fused)[int(match["expert"])]
                return matrix if match["part"] == "down" else matrix.chunk(2)[0 if match["part"] == "gate" else 1]
        raise UserError(
            f"tensor {name} is not in {self.path}", "every tensor of the model must be there", "copy the model folder again, complete"
        )
