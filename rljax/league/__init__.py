"""Games of several players: exact values and exploitability of small ones (`game_tree`)."""
