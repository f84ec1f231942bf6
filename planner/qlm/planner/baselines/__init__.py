"""Planning methods to be better than: each orders and places groups as some server would."""
