"""What the property tests of statistics draw their scores from."""

from hypothesis import strategies as st

# Thousandths, as printed scores are: properties are about the statistics, not about rounding at 1e-300.
score = st.integers(-2000, 2000).map(lambda value: value / 1000)


def scores(fewest: int = 3, most: int = 12) -> st.SearchStrategy[list[float]]:
    return st.lists(score, min_size=fewest, max_size=most)


shift = st.integers(-50, 50).map(float)
scale = st.sampled_from([0.01, 0.5, 2.0, 100.0])
