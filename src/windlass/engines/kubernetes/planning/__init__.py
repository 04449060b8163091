"""Plans a run on a cluster from a job and the facts of the cluster; pure, except `facts` and `dry_run`."""
