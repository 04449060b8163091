"""Creates, changes, removes, checks, audits and prices the user's EKS clusters, with Terraform.

The commands are in `up`, `down`, `status`, `plan`, `draft` and `export`. `find` resolves the cluster that a command
names, and `working_folder` prepares its Terraform folder. Each package covers one further topic.
"""
