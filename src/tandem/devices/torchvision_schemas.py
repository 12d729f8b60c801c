"""Lets a CUDA build of torchvision be imported beside CPU torch. `torchvision_cpu` copies this file into site-packages.

torchvision registers shape functions for its compiled operators when it is imported. Where the compiled library could not load,
torch does not know those operators and the import fails with `operator torchvision::nms does not exist`. So their schemas are
declared just before. Only the schemas: calling one of the operators still fails, loudly.

Standard library only, and nothing of Tandem: every Python process of the environment runs this at start-up. torch is imported when
torchvision is, not before.
"""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries = []  # the schemas live as long as the object that declared them


def declare_schemas():
    if _libraries:
        return
    from torch import library as operators

    library = operators.Library("torchvision", "FRAGMENT")
    for schema in SCHEMAS:
        library.define(schema)
    _libraries.append(library)


class TorchvisionFinder(MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname != "torchvision":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        run_module = spec.loader.exec_module

        def exec_module(module):
            declare_schemas()
            run_module(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, TorchvisionFinder())
