"""The examples that need no Spark run, and their answers are right (the others: tests/spark/test_pipeline.py)."""

from examples import local_history


def test_the_local_history_gives_right_answers(capsys):
    assert local_history.main() == 0
    printed = capsys.readouterr().out
    assert "ok: the same three reads give the same answers" in printed
    assert "BUG" not in printed
    assert "3 can no longer be read" in printed
