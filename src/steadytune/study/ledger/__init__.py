"""The ledger of a study: `Ledger`, and what it is made of.

`ledger` (what can be said and asked), `statements` (its SQL), `schema` (tables, rules, upgrades), `rows` and `values`
(what is read and how it is packed), `file` and `connection` (making, opening and writing to it safely).
"""

from steadytune.study.ledger.connection import LedgerError
from steadytune.study.ledger.ledger import DEATHS_ALLOWED, Ledger
from steadytune.study.ledger.rows import Claim, TrialRow

__all__ = ["DEATHS_ALLOWED", "Claim", "Ledger", "LedgerError", "TrialRow"]
