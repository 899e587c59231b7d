"""What tests of the catalog share."""

from timespine.testing.unreliable import Fault

KEY = {"n": "int64"}


LOST = [Fault.INDETERMINATE_DONE, Fault.INDETERMINATE_NOT, Fault.LATE]
