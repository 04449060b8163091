# Roles of pods through EKS Pod Identity, each for one service account of this cluster.

locals {
  driver_accounts = merge(
    { vpc_cni = "aws-node", ebs_csi = "ebs-csi-controller-sa" },
    local.has_efs_driver ? { efs_csi = "efs-csi-controller-sa" } : {},
    var.s3_mountpoint ? { s3_csi = "s3-csi-driver-sa" } : {},
  )
  driver_roles = merge(
    { vpc_cni = aws_iam_role.vpc_cni.arn, ebs_csi = aws_iam_role.ebs_csi.arn },
    local.has_efs_driver ? { efs_csi = aws_iam_role.efs_csi[0].arn } : {},
    var.s3_mountpoint ? { s3_csi = aws_iam_role.s3_csi[0].arn } : {},
  )
  pods = {
    run                      = { namespace = var.namespace, account = var.service_account }
    vpc_cni                  = { namespace = "kube-system", account = "aws-node" }
    ebs_csi                  = { namespace = "kube-system", account = "ebs-csi-controller-sa" }
    efs_csi                  = { namespace = "kube-system", account = "efs-csi-*" }
    s3_csi                   = { namespace = "kube-system", account = "s3-csi-driver-sa" }
    karpenter                = { namespace = "kube-system", account = "karpenter" }
    load_balancer_controller = { namespace = "kube-system", account = "aws-load-balancer-controller" }
  }
}

data "aws_iam_policy_document" "pod" {
  for_each = local.pods

  statement {
    actions = ["sts:AssumeRole", "sts:TagSession"]
    principals {
      type        = "Service"
      identifiers = ["pods.eks.amazonaws.com"]
    }
    condition {
      test     = "StringEquals"
      variable = "aws:RequestTag/eks-cluster-arn"
      values   = [local.cluster_arn]
    }
    condition {
      test     = "StringEquals"
      variable = "aws:RequestTag/kubernetes-namespace"
      values   = [each.value.namespace]
    }
    condition {
      test     = "StringLike"
      variable = "aws:RequestTag/kubernetes-service-account"
      values   = [each.value.account]
    }
  }
}

# Permissions of a run's pods: this bucket, its key, and images of these repositories.
data "aws_iam_policy_document" "run" {
  source_policy_documents = [data.aws_iam_policy_document.bucket_access.json]

  dynamic "statement" {
    for_each = length(var.repositories) > 0 ? [1] : []
    content {
      sid       = "Images"
      actions   = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
      resources = local.repository_arns
    }
  }

  dynamic "statement" {
    for_each = length(var.repositories) > 0 ? [1] : []
    content {
      sid       = "Login"
      actions   = ["ecr:GetAuthorizationToken"] # cannot be limited to resources
      resources = ["*"]
    }
  }
}

# Bucket permissions shared by the roles of runs, SageMaker jobs and the Mountpoint driver.
data "aws_iam_policy_document" "bucket_access" {
  statement {
    sid       = "Bucket"
    actions   = ["s3:GetBucketLocation", "s3:ListBucket", "s3:ListBucketMultipartUploads"]
    resources = [local.bucket_arn]
  }

  statement {
    sid = "Objects"
    actions = [
      "s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:ListMultipartUploadParts", "s3:PutObject",
    ]
    resources = ["${local.bucket_arn}/*"]
  }

  dynamic "statement" {
    for_each = var.bucket_managed || var.bucket_key_arn != "" ? [1] : []
    content {
      sid       = "Key"
      actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
      resources = local.bucket_keys
      condition {
        test     = "StringEquals"
        variable = "kms:ViaService"
        values   = ["s3.${var.region}.amazonaws.com"]
      }
    }
  }
}

resource "aws_iam_role" "run" {
  name                 = local.names["aws_iam_role.run"]
  path                 = var.iam.path
  permissions_boundary = var.iam.permissions_boundary
  description          = "Pods of ${var.namespace}/${var.service_account} in ${var.name}: the bucket ${local.bucket}"
  assume_role_policy   = data.aws_iam_policy_document.pod["run"].json
}

resource "aws_iam_role_policy" "run" {
  name   = "bucket"
  role   = aws_iam_role.run.id
  policy = data.aws_iam_policy_document.run.json
}

resource "aws_eks_pod_identity_association" "run" {
  cluster_name    = aws_eks_cluster.main.name
  namespace       = var.namespace
  service_account = var.service_account
  role_arn        = aws_iam_role.run.arn
}

# The rights of the VPC CNI belong to its pods and not to nodes, whose role every process on a node can use.
resource "aws_iam_role" "vpc_cni" {
  name                 = local.names["aws_iam_role.vpc_cni"]
  path                 = var.iam.path
  permissions_boundary = var.iam.permissions_boundary
  description          = "VPC CNI of ${var.name}"
  assume_role_policy   = data.aws_iam_policy_document.pod["vpc_cni"].json
}

resource "aws_iam_role_policy_attachment" "vpc_cni" {
  role       = aws_iam_role.vpc_cni.name
  policy_arn = "arn:${local.partition}:iam::aws:policy/AmazonEKS_CNI_Policy"
}

resource "aws_iam_role" "ebs_csi" {
  name                 = local.names["aws_iam_role.ebs_csi"]
  path                 = var.iam.path
  permissions_boundary = var.iam.permissions_boundary
  description          = "EBS driver of ${var.name}"
  assume_role_policy   = data.aws_iam_policy_document.pod["ebs_csi"].json
}

resource "aws_iam_role_policy_attachment" "ebs_csi" {
  role       = aws_iam_role.ebs_csi.name
  policy_arn = "arn:${local.partition}:iam::aws:policy/service-role/AmazonEBSCSIDriverPolicy"
}

resource "aws_iam_role" "efs_csi" {
  count                = local.has_efs_driver ? 1 : 0
  name                 = local.names["aws_iam_role.efs_csi"]
  path                 = var.iam.path
  permissions_boundary = var.iam.permissions_boundary
  description          = "EFS driver of ${var.name}"
  assume_role_policy   = data.aws_iam_policy_document.pod["efs_csi"].json
}

resource "aws_iam_role_policy_attachment" "efs_csi" {
  for_each = toset(local.has_efs_driver ? concat(
    ["AmazonEFSCSIDriverPolicy"], var.s3_files ? ["AmazonS3FilesCSIDriverPolicy"] : []
  ) : [])
  role       = aws_iam_role.efs_csi[0].name
  policy_arn = "arn:${local.partition}:iam::aws:policy/service-role/${each.key}"
}

# The node plugin of the driver mounts S3 Files with the permissions of this role.
data "aws_iam_policy_document" "s3_files_mount" {
  statement {
    sid       = "Mount"
    actions   = ["s3files:ClientMount", "s3files:ClientWrite", "s3files:ClientRootAccess"]
    resources = ["arn:${local.partition}:s3files:${var.region}:${local.account_id}:file-system/*"]
    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/windlass.dev/cluster"
      values   = [var.name]
    }
  }

  # Large reads bypass S3 Files and read the bucket directly.
  statement {
    sid       = "Read"
    actions   = ["s3:GetObject", "s3:GetObjectVersion"]
    resources = ["${local.bucket_arn}/*"]
  }

  statement {
    sid       = "Key"
    actions   = ["kms:Decrypt"]
    resources = local.bucket_keys
  }
}

resource "aws_iam_role_policy" "efs_csi" {
  count  = var.s3_files ? 1 : 0
  name   = "s3-files"
  role   = aws_iam_role.efs_csi[0].id
  policy = data.aws_iam_policy_document.s3_files_mount.json
}

resource "aws_eks_pod_identity_association" "s3_files_node" {
  count           = var.s3_files ? 1 : 0
  cluster_name    = aws_eks_cluster.main.name
  namespace       = "kube-system"
  service_account = "efs-csi-node-sa"
  role_arn        = aws_iam_role.efs_csi[0].arn
}

resource "aws_iam_role" "s3_csi" {
  count                = var.s3_mountpoint ? 1 : 0
  name                 = local.names["aws_iam_role.s3_csi"]
  path                 = var.iam.path
  permissions_boundary = var.iam.permissions_boundary
  description          = "Mountpoint for S3 driver of ${var.name}: the bucket ${local.bucket}"
  assume_role_policy   = data.aws_iam_policy_document.pod["s3_csi"].json
}

resource "aws_iam_role_policy" "s3_csi" {
  count  = var.s3_mountpoint ? 1 : 0
  name   = "bucket"
  role   = aws_iam_role.s3_csi[0].id
  policy = data.aws_iam_policy_document.bucket_access.json
}

resource "aws_eks_pod_identity_association" "driver" {
  for_each        = local.driver_accounts
  cluster_name    = aws_eks_cluster.main.name
  namespace       = "kube-system"
  service_account = each.value
  role_arn        = local.driver_roles[each.key]

  depends_on = [aws_iam_role_policy_attachment.vpc_cni, aws_iam_role_policy_attachment.ebs_csi, aws_iam_role_policy_attachment.efs_csi, aws_iam_role_policy.s3_csi]
}
