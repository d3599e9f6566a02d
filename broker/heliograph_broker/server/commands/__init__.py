"""The handlers of client commands, and the table that says which command has which.

A handler gets a session and a command, calls the core, and answers by the session, at once or when what was asked for
is durable. Handlers keep no state of their own.
"""
