# The control plane, access to it, and EKS add-ons.

data "aws_iam_policy_document" "trust" {
  for_each = {
    cluster    = "eks.amazonaws.com"
    node       = "ec2.amazonaws.com"
    flow       = "vpc-flow-logs.amazonaws.com"
    sagemaker  = "sagemaker.amazonaws.com"
    filesystem = "elasticfilesystem.amazonaws.com"
  }

  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = [each.value]
    }
    # Confused deputy: AWS must not use the role for clusters, logs or jobs of other accounts.
    dynamic "condition" {
      for_each = each.key == "node" ? [] : [1]
      content {
        test     = "StringEquals"
        variable = "aws:SourceAccount"
        values   = [local.account_id]
      }
    }
  }
}

resource "aws_iam_role" "cluster" {
  name                 = local.names["aws_iam_role.cluster"]
  path                 = var.iam.path
  permissions_boundary = var.iam.permissions_boundary
  description          = "Control plane of the EKS cluster ${var.name}"
  assume_role_policy   = data.aws_iam_policy_document.trust["cluster"].json
}

resource "aws_iam_role_policy_attachment" "cluster" {
  role       = aws_iam_role.cluster.name
  policy_arn = "arn:${local.partition}:iam::aws:policy/AmazonEKSClusterPolicy"
}

resource "aws_eks_cluster" "main" {
  #checkov:skip=CKV_AWS_39:The endpoint is public only for the ranges in endpoint_public_cidrs, and private without them.
  name     = local.names["aws_eks_cluster.main"]
  version  = var.kubernetes_version
  role_arn = aws_iam_role.cluster.arn
  tags     = local.own_vpc == 1 ? {} : { "windlass.dev/existing-vpc" = var.vpc_id }

  enabled_cluster_log_types = ["api", "audit", "authenticator", "controllerManager", "scheduler"]
  # EKS manages the add-ons that are configured below.
  bootstrap_self_managed_addons = false

  access_config {
    authentication_mode                         = "API"
    bootstrap_cluster_creator_admin_permissions = true
  }

  vpc_config {
    subnet_ids              = local.subnet_ids
    endpoint_private_access = true
    endpoint_public_access  = length(var.endpoint_public_cidrs) > 0
    public_access_cidrs     = length(var.endpoint_public_cidrs) > 0 ? var.endpoint_public_cidrs : null
  }

  encryption_config {
    resources = ["secrets"]
    provider {
      key_arn = local.key_arns["secrets"]
    }
  }

  upgrade_policy {
    support_type = var.support_type
  }

  lifecycle {
    # EKS does not return these attributes: after an import, Terraform would replace the cluster because of them.
    ignore_changes = [bootstrap_self_managed_addons, access_config[0].bootstrap_cluster_creator_admin_permissions]

    precondition {
      condition     = length(local.zones) >= 2
      error_message = "EKS needs two availability zones, but there are ${length(local.zones)} (${join(", ", local.zones)}): list zones in the variable zones, or subnets of two in subnet_ids."
    }
  }

  # If the log group does not exist yet, EKS creates it, without retention.
  depends_on = [aws_iam_role_policy_attachment.cluster, aws_cloudwatch_log_group.cluster]
}

locals {
  access = merge(
    { for arn in var.admin_principals : arn => { policy = "AmazonEKSClusterAdminPolicy", groups = [], namespaces = [] } },
    # EKS's access policy omits custom resources. Components in the cluster bind permissions on them to this group.
    { for arn in var.user_principals : arn => { policy = "AmazonEKSEditPolicy", groups = ["windlass-users"], namespaces = [var.namespace] } },
  )
}

resource "aws_eks_access_entry" "main" {
  for_each          = local.access
  cluster_name      = aws_eks_cluster.main.name
  principal_arn     = each.key
  kubernetes_groups = each.value.groups
}

resource "aws_eks_access_policy_association" "main" {
  for_each      = local.access
  cluster_name  = aws_eks_cluster.main.name
  principal_arn = aws_eks_access_entry.main[each.key].principal_arn
  policy_arn    = "arn:${local.partition}:eks::aws:cluster-access-policy/${each.value.policy}"

  access_scope {
    type       = length(each.value.namespaces) > 0 ? "namespace" : "cluster"
    namespaces = each.value.namespaces
  }
}

# EKS's default version of each add-on without one in var.addon_versions, read so that the plan shows it. Of the EFS driver
# the newest: the default may be older than 3, which does not support S3 Files.
data "aws_eks_addon_version" "main" {
  for_each           = setsubtract(concat(local.node_addons, keys(local.pod_addons)), keys(var.addon_versions))
  addon_name         = each.key
  kubernetes_version = var.kubernetes_version
  most_recent        = each.key == "aws-efs-csi-driver"
}

locals {
  has_efs_driver = var.efs != null || var.s3_files

  # Add-ons that are created before the nodes, which do not become ready without them.
  node_addons = ["vpc-cni", "kube-proxy", "eks-pod-identity-agent"]

  # Add-ons that are created after the nodes on which their pods run, each with its configuration.
  pod_addons = merge(
    { coredns = null, aws-ebs-csi-driver = null },
    local.has_efs_driver ? { aws-efs-csi-driver = null } : {},
    var.fsx != null ? { aws-fsx-csi-driver = null } : {},
    # By default, the driver's agent does not run on tainted nodes, such as GPU nodes.
    var.s3_mountpoint ? { aws-mountpoint-s3-csi-driver = jsonencode({ node = { tolerateAllTaints = true } }) } : {},
  )

  addon_versions = merge({ for name, found in data.aws_eks_addon_version.main : name => found.version }, var.addon_versions)
}

resource "aws_eks_addon" "node" {
  for_each                    = toset(local.node_addons)
  cluster_name                = aws_eks_cluster.main.name
  addon_name                  = each.key
  addon_version               = local.addon_versions[each.key]
  resolve_conflicts_on_create = "OVERWRITE"
  resolve_conflicts_on_update = "OVERWRITE"
}

resource "aws_eks_addon" "pod" {
  for_each                    = local.pod_addons
  cluster_name                = aws_eks_cluster.main.name
  addon_name                  = each.key
  addon_version               = local.addon_versions[each.key]
  configuration_values        = each.value
  resolve_conflicts_on_create = "OVERWRITE"
  resolve_conflicts_on_update = "OVERWRITE"

  lifecycle {
    precondition {
      condition     = each.key != "aws-efs-csi-driver" || tonumber(split(".", trimprefix(local.addon_versions[each.key], "v"))[0]) >= 3
      error_message = "The EFS driver is ${local.addon_versions[each.key]}: S3 Files and mounts through access points need version 3."
    }
  }

  depends_on = [aws_eks_node_group.system, aws_eks_pod_identity_association.driver]
}
