# The name of each thing that has one, by its Terraform address. Names are made of var.name alone, so that what a run of
# Terraform left behind can be found, imported and removed without its state. `{key}` is the key of for_each.
# names.json is read by Windlass too.

locals {
  account_id = data.aws_caller_identity.current.account_id
  partition  = data.aws_partition.current.partition
  bucket     = var.bucket_name != "" ? var.bucket_name : "windlass-${var.name}-${local.account_id}"

  names = {
    for address, pattern in jsondecode(file("${path.module}/names.json")) :
    address => replace(replace(pattern, "{name}", var.name), "{bucket}", local.bucket)
  }

  tags = merge(var.tags, {
    "windlass.dev/cluster"    = var.name
    "windlass.dev/managed-by" = "terraform"
  })

  # The ARN is known before the cluster is, so that trust policies can name it.
  cluster_arn = "arn:${local.partition}:eks:${var.region}:${local.account_id}:cluster/${var.name}"
  bucket_arn  = "arn:${local.partition}:s3:::${local.bucket}"
  repository_arns = [
    for repository in var.repositories :
    "arn:${local.partition}:ecr:${var.region}:${local.account_id}:repository/${repository}"
  ]
}
