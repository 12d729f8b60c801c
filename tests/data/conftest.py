"""A prompt builder of the tiny model for each setting of the data section."""

import pytest


@pytest.fixture(scope="session")
def builder_with(tiny_model):
    """`builder_with(max_prompt_length=40)` -> PromptBuilder; the processor is loaded once."""
    from copy import copy

    from tandem.config.schema import DataConfig
    from tandem.data.prompts import PromptBuilder

    loaded = PromptBuilder(str(tiny_model), DataConfig())

    def make(**settings):
        builder = copy(loaded)
        builder.data = DataConfig(**settings)
        return builder

    return make
