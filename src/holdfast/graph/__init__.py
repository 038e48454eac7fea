"""Graph: the file that says what runs, and the runtime that runs it."""
