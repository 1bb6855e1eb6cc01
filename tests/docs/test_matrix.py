"""The table of what can be learned is what its script writes."""

from benchmarks.learning_matrix import MARKS, PAGE, table


def test_the_table_is_up_to_date():
    text = PAGE.read_text()
    assert text.split(MARKS[0])[1].split(MARKS[1])[0].strip() == table()
