"""Moves files of a run by Jobs: data sets into a claim before the first attempt, outputs from one after the last."""
