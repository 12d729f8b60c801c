"""Layouts that tests and benchmarks run: ranks and parallel sizes."""

LAYOUTS: dict[str, tuple[int, dict[str, int]]] = {
    "single": (1, {}),
    "dp2": (2, {}),
    "tp2_etp1": (2, {"tp": 2}),
    "tp2_etp2": (2, {"tp": 2, "etp": 2}),
    "tp2_ep2": (2, {"tp": 2, "ep": 2}),
    "ep4": (4, {"ep": 4}),
    "pp2": (2, {"pp": 2}),
    "pp2_vpp2": (2, {"pp": 2, "vpp": 2}),
    "cp2": (2, {"cp": 2}),
    "tp2_pp2_ep2": (4, {"tp": 2, "pp": 2, "ep": 2}),
    "tp2_cp2_ep2": (4, {"tp": 2, "cp": 2, "ep": 2}),
    "pp2_cp2_ep2": (4, {"pp": 2, "cp": 2, "ep": 2}),
    "tp2_pp2_cp2_ep2": (8, {"tp": 2, "pp": 2, "cp": 2, "ep": 2}),
    "guide_35b": (16, {"tp": 2, "pp": 2, "ep": 8}),
}
GUIDE_122B = (64, {"tp": 2, "pp": 4, "ep": 16})
