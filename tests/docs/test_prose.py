"""The lint of the prose finds what it is for; `make lint` runs it over documents and sources."""

import prose
import pytest


def test_discouraged_words_are_found_with_their_lines_and_across_line_breaks():
    text = "Nobody reads this.\nIt cannot be read any\nmore, or any\n# more.\nNo body, many more, standby nowhere.\n"
    assert prose.discouraged(text) == [(1, "Nobody"), (2, "any\nmore"), (3, "any\n# more")]


def test_blocks_of_a_document_are_passed_over_and_lines_stay_the_same(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("one\n```text\nnobody\n```\nby now\n")
    assert prose.words_in(page) == [(5, "by now")]


def test_docstrings_of_public_definitions_are_sentences():
    source = """
class Public:
    '''A class.'''
    def method(self):
        '''gives nothing'''
    def _inner(self):
        '''anything'''
def plain(): ...
"""
    assert prose.docstring_faults(source) == [
        (4, "the docstring of Public.method begins without a capital letter"),
        (4, "the docstring of Public.method ends without a period"),
    ]


def test_docstrings_of_functions_begin_with_a_verb():
    source = """
def rows():
    '''The rows.'''
@property
def size():
    '''The bytes.'''
def theorem():
    '''Theorize.'''
"""
    assert prose.verb_faults(source) == [(2, "the docstring of rows begins with no verb")]


NO_VERBS = (
    *("Integers per row", "128-bit integers", "If few", "Ones for", "Their words", "More rows", "Bounds of", "At most"),
    *("Our part", "Inline parts", "Everything up to", "About how many", "Row groups", "Arrow asks"),
)


@pytest.mark.parametrize("first", NO_VERBS)
def test_a_docstring_that_begins_with_another_word_than_a_verb_is_found(first):
    assert prose.verb_faults(f"def rows():\n    '''{first} here.'''") != []


@pytest.mark.parametrize("verb", ["Pass", "Discard", "Return", "Own", "Process", "Offset", "Ask", "Word"])
def test_a_verb_is_none_of_these_words(verb):
    assert prose.verb_faults(f"def rows():\n    '''{verb} what is here.'''") == []


def test_names_of_functions_and_classes_are_checked_too():
    source = "def test_nobody_waits(): ...\nclass Reborn: ...\ndef test_no_thread_waits():\n    def bury(): ...\n"
    assert prose.name_faults(source) == [
        (1, "the name test_nobody_waits has a discouraged word"),
        (4, "the name bury has a discouraged word"),
    ]
