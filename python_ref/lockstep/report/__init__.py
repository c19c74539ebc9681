"""How reports are shown: a table for people, JSON and JUnit for machines. No number is made here."""
