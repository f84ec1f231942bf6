"""Who ended a request: the reasons that its client, and operators, read."""

from typing import Final

BY_CLIENT: Final = "its client asked for that"
BY_OPERATOR: Final = "an operator asked for that"
LETTER_DELETED: Final = "an operator deleted its message"
NOT_CONFIRMED: Final = "the global queue did not confirm it"
