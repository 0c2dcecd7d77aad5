"""The little that other trainers need to know of losses with a schedule or a state; each module needs its library."""
