"""The port of the binary protocol: it accepts connections, reads commands from them, and sends answers and messages.

The listener accepts connections within its limits and keeps them alive. Each has a session, which holds the client's
producers and consumers and gives every command to its handler in :mod:`.commands`. A connection that its client does
not read, or that gets ahead of the store, is held back.
"""
