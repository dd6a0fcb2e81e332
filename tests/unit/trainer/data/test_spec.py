"""What an example is: packed, written as JSON, and refused if the JSON is somebody else's."""

import copy
import json

import pytest

from control.datasets.listing.specs import DEEPEST, checked
from trainer.common.errors import DatasetError
from trainer.data.spec import Leaf, Spec, noun, of_images

SPEC = Spec(
    [{"a": 2, "more": [0, {"b": 3}]}, 1],
    (Leaf("x.more[0]", "float32", (28,)), Leaf("y", "int64", ()), Leaf("x.a", "string", (None,)), Leaf("x.more[1].b", "bool", (None, 4))),
)


def test_values_are_packed_into_the_nest():
    assert SPEC.pack(["m", "y", "a", "b"]) == ({"a": "a", "more": ["m", {"b": "b"}]}, "y")
    assert of_images((2, 3, 1)).pack([1, 2]) == (1, 2)
    assert Spec([0], (Leaf("x", "int8", ()),)).pack([5]) == (5,)
    assert SPEC.names == ("x.more[0]", "y", "x.a", "x.more[1].b")
    assert [leaf.name for leaf in SPEC.parts["x"]] == ["x.a", "x.more[0]", "x.more[1].b"]
    assert list(SPEC.parts) == ["x", "y"]


def test_examples_of_any_columns_are_no_images():
    assert [noun(), noun(None, None), noun(SPEC), noun(None, SPEC.to_json())] == ["image", "image", "example", "example"]


def test_inputs_alone_are_a_spec():
    inputs = SPEC.inputs
    assert inputs.pack(["a", "m", "b"]) == ({"a": "a", "more": ["m", {"b": "b"}]},)
    assert inputs.names == ("x.a", "x.more[0]", "x.more[1].b")
    for spec in (SPEC, inputs):
        raw = json.loads(json.dumps(spec.to_json()))
        assert Spec.from_json(raw) == checked(raw) == spec
    assert of_images((2, 3, 1)).inputs == Spec([0], (Leaf("image", "uint8", (2, 3, 1)),))


def nested(depth):
    nest = 1
    for _ in range(depth):
        nest = [nest]
    return nest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.clear(), "it needs structure and leaves"),
        (lambda raw: raw.update(more=1), "it needs structure and leaves"),
        (lambda raw: raw.update(structure={"x": 0}), "structure must be a list of one to three items"),
        (lambda raw: raw.update(structure=[]), "structure must be a list of one to three items"),
        (lambda raw: raw.update(structure=[0, 1, 2, 3]), "structure must be a list of one to three items"),
        (lambda raw: raw.update(structure=[[0, 2, 3], 7]), "structure must name each of the 4 leaves once"),
        (lambda raw: raw.update(structure=[[0, 2, 3], 0]), "structure must name each of the 4 leaves once"),
        (lambda raw: raw.update(structure=[[0, 2, 3], -1]), "structure must name each of the 4 leaves once"),
        (lambda raw: raw.update(structure=[[0, 2, 3], True]), "structure must be dicts and lists of indices"),
        (lambda raw: raw.update(structure=[[0, 2, 3], "1"]), "structure must be dicts and lists of indices"),
        (lambda raw: raw.update(structure=[[0, 2, 3], 1.0]), "structure must be dicts and lists of indices"),
        (lambda raw: raw.update(structure=[[0, 2, 3], nested(DEEPEST + 1)]), f"structure is nested more than {DEEPEST} levels deep"),
        (lambda raw: raw.update(structure=[nested(100_000)]), f"structure is nested more than {DEEPEST} levels deep"),
        (lambda raw: raw.update(leaves=[]), "there must be 1 to 4096 leaves"),
        (lambda raw: raw.update(leaves=raw["leaves"] * 2000), "there must be 1 to 4096 leaves"),
        (lambda raw: raw["leaves"][0].pop("name"), "a leaf needs name, dtype and shape"),
        (lambda raw: raw["leaves"][0].update(name="x" * 300), "a leaf's name must be text of 1 to 256 characters"),
        (lambda raw: raw["leaves"][0].update(name=3), "a leaf's name must be text"),
        (lambda raw: raw["leaves"][0].update(dtype="object"), "dtype 'object'; it must be one of: bool, int8"),
        (lambda raw: raw["leaves"][0].update(dtype="V8"), "dtype 'V8'; it must be one of"),
        (lambda raw: raw["leaves"][0].update(dtype=["float32"]), "it must be one of"),
        (lambda raw: raw["leaves"][0].update(shape=[-1]), "a shape has up to 8 dimensions, each a whole number or null"),
        (lambda raw: raw["leaves"][0].update(shape=[True]), "a shape has up to 8 dimensions"),
        (lambda raw: raw["leaves"][0].update(shape=[1] * 9), "a shape has up to 8 dimensions"),
        (lambda raw: raw["leaves"][0].update(shape="28"), "a shape has up to 8 dimensions"),
        (lambda raw: raw["leaves"][0].update(shape=[2**20, 2**20]), "an example's array has 1,099,511,627,776 elements"),
    ],
)
def test_a_hostile_spec_is_refused(change, message):
    raw = copy.deepcopy(SPEC.to_json())
    change(raw)
    with pytest.raises(DatasetError) as caught:
        checked(raw)
    assert str(caught.value).startswith("the dataset's spec: ")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300


def test_packed_is_unpacked_and_another_structure_refused():
    spec = Spec([{"b": 1, "a": [0, 2]}, 3], tuple(Leaf(f"l{number}", "float32", (None, 2, None)[: number % 4]) for number in range(4)))
    assert spec.unpack(spec.pack([10, 11, 12, 13])) == [10, 11, 12, 13]
    assert spec.varying == [(1, 0), (2, 0), (3, 0), (3, 2)]
    for odd in ([{"b": 1, "a": [0, 2]}], [{"b": 1}, 3], [{"b": 1, "a": 0}, 3], [[1, [0, 2]], 3], [{"b": 1, "a": [0, 2], "c": 1}, 3]):
        with pytest.raises(DatasetError, match="has another structure"):
            spec.unpack(odd)
