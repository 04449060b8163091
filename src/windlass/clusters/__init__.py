"""EKS clusters of the user: made, changed and removed by Terraform, checked, audited and priced.

`up`, `down`, `status`, `plan`, `draft` and `export` are the commands; `find` is the cluster that a command names, and
`working_folder` prepares Terraform for it. What they use has a folder for each theme.
"""
