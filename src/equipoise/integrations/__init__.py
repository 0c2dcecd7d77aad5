"""Callbacks for other trainers, for losses with schedules or state; each module requires its library."""
