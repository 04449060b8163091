"""The record of a run: what happened (`record`), where it is kept (`store`) and what the ranks said (`logs`)."""
