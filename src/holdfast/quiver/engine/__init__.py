"""One open quiver: its parts put together, its accounts, and what its owner can be asked."""
