# Names of all named resources, by Terraform address. They depend only on var.name, so that resources left behind by
# Terraform can be found, imported and removed without its state. `{key}` is the key of for_each.
# Windlass also reads names.json.

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

  # Computed, so that trust policies can contain the ARN before the cluster exists.
  cluster_arn = "arn:${local.partition}:eks:${var.region}:${local.account_id}:cluster/${var.name}"
  bucket_arn  = "arn:${local.partition}:s3:::${local.bucket}"
  repository_arns = [
    for repository in var.repositories :
    "arn:${local.partition}:ecr:${var.region}:${local.account_id}:repository/${repository}"
  ]
}
