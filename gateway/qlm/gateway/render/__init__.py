"""The render tier: conversations into token ids and grammars, token ids into messages, beyond plain text."""
