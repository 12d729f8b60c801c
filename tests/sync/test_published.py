"""Ranks in TP2 PP2 EP2 publish to a generator that is not cut at all."""

from tests.engine.test_packed import weighted
from tests.sync.published import count_differing_samples


def test_log_probs_after_a_publication_are_bit_for_bit_those_of_a_fresh_load(tiny_model, sequences, tmp_path):
    """Halves of 64 KiB: layers come in pieces, from ranks in turn. Eight ranks and GEN_TP 2: `benchmarks/publication.py --layouts`."""
    found = count_differing_samples(tiny_model, weighted(sequences), tmp_path, num_ranks=4, gen_tps=[1], bucket_bytes=1 << 17)
    num_samples, num_differing, num_unlike_start = found[1]
    assert num_samples == 18 and num_differing == 0
    assert num_unlike_start > 12, "the step changed what is generated"
