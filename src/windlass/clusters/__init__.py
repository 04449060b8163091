"""EKS clusters of the user: created, changed and removed by Terraform, checked, audited and priced.

The commands are in `up`, `down`, `status`, `plan`, `draft` and `export`. `find` resolves the cluster that a command
names, and `working_folder` prepares its Terraform folder. Everything else has one package per theme.
"""
