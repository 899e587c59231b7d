"""What a user sees of the exported classes: every name has a docstring, and hints that say something."""

import inspect

import pytest

import timespine

CLASSES = [name for name in timespine.__all__ if inspect.isclass(getattr(timespine, name))]

INSIDES = {
    "Store": {"engine", "handles", "heart", "maintenance", "adopt", "check_replaceable", "set_retention", "compact"},
    "Rows": {"only", "untouched", "slices", "extent", "tally", "columns_of", "restrict_to", "parts"},
}
"""Names that were public once, and are no business of users."""


def members(name):
    """Give the public methods and properties that a class of ours defines or inherits."""
    for owner in getattr(timespine, name).__mro__:
        if owner.__module__.startswith("timespine."):
            for member, value in vars(owner).items():
                function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if not member.startswith("_") and inspect.isfunction(function):
                    yield f"{owner.__name__}.{member}", function


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_name_has_a_docstring_that_begins_with_a_word(name):
    assert (inspect.getdoc(getattr(timespine, name)) or "")[:1].isalpha(), name
    for member, function in members(name):
        text = inspect.getdoc(function) or ""
        assert text[:1].isalpha() or text[:1] in "`", f"{member} has no docstring"


@pytest.mark.parametrize("name", CLASSES)
def test_no_hint_of_a_public_method_is_any(name):
    for member, function in members(name):
        if function.__name__ == "<lambda>":
            continue
        given = inspect.signature(function)
        hints = [str(each.annotation) for each in given.parameters.values()] + [str(given.return_annotation)]
        assert not any("Any" in hint for hint in hints), f"{member}: {given}"
        untyped = [
            each
            for each in given.parameters.values()
            if each.annotation is each.empty and each.name not in ("self", "cls")
        ]
        assert not untyped, f"{member}: {untyped}"


@pytest.mark.parametrize("name", INSIDES)
def test_stores_and_rows_show_no_insides(name):
    assert not INSIDES[name] & set(dir(getattr(timespine, name)))


def test_the_options_of_a_transaction_that_creates_are_those_of_the_store():
    of_store = set(inspect.signature(timespine.Store.create).parameters) - {"self", "name", "replace", "if_exists"}
    assert of_store == set(timespine.CreateOptions.__annotations__)
