"""The request path gives what openpi gave, for every robot, lineage and mode that was recorded."""

import dataclasses

import numpy as np
import pytest
from golden_requests import GoldenRequest, golden_requests

from policy_server.request_path import ModelInput

cases = pytest.mark.parametrize("case", list(golden_requests()), ids=str)


@cases
def test_the_model_gets_the_images_that_openpi_gave_it(case: GoldenRequest):
    arrays = case.arrays
    request, recorded = case.request(arrays)
    case.need(recorded, "the request's images")
    case.need("model_in/image/base_0_rgb" in arrays, "the model's images")

    images = case.path().prepare(request).images

    assert list(images) == ["base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"]
    for slot, image in images.items():
        np.testing.assert_array_equal(image, arrays[f"model_in/image/{slot}"], strict=True)


@cases
def test_the_model_gets_the_prompt_state_and_masks_that_openpi_gave_it(case: GoldenRequest):
    arrays = case.arrays
    request, _ = case.request(arrays)

    model_input = case.path().prepare(request)

    np.testing.assert_array_equal(
        model_input.tokens, arrays["model_in/tokenized_prompt"], strict=True
    )
    np.testing.assert_array_equal(
        model_input.token_mask, arrays["model_in/tokenized_prompt_mask"], strict=True
    )
    np.testing.assert_allclose(
        model_input.state, arrays["model_in/state"], rtol=1e-12, atol=1e-12, strict=True
    )
    for slot, mask in model_input.image_masks.items():
        assert mask == arrays[f"model_in/image_mask/{slot}"], slot


@cases
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_the_robot_gets_the_actions_that_openpi_gave_it(case: GoldenRequest, precision: str):
    arrays = case.arrays
    case.need(f"actions_{precision}" in arrays, f"actions_{precision}")
    recorded_input = ModelInput(
        images={},
        image_masks={},
        tokens=arrays["model_in/tokenized_prompt"],
        token_mask=arrays["model_in/tokenized_prompt_mask"],
        state=arrays["model_in/state"],
        warnings=(),
    )

    actions = case.path().finish(arrays[f"raw_actions_{precision}"], recorded_input)

    np.testing.assert_allclose(
        actions, arrays[f"actions_{precision}"], rtol=1e-12, atol=1e-12, strict=True
    )


@cases
def test_a_request_stays_as_it_was(case: GoldenRequest):
    request, _ = case.request(case.arrays)
    for value in request.values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False  # as it comes off the wire

    first, second = case.path().prepare(request), case.path().prepare(request)

    for field in dataclasses.fields(ModelInput):
        np.testing.assert_equal(getattr(first, field.name), getattr(second, field.name))
