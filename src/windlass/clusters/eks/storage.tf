# The bucket, the shared file system, and the file system over the bucket.

locals {
  own_bucket     = var.bucket_managed ? 1 : 0
  own_bucket_key = var.bucket_managed && var.bucket_key_arn == "" ? 1 : 0
  bucket_keys    = concat(aws_kms_key.bucket[*].arn, compact([var.bucket_key_arn]))
}

# An existing bucket of another owner: it is only read, never changed.
data "aws_s3_bucket" "main" {
  count  = var.bucket_managed ? 0 : 1
  bucket = local.bucket
}

resource "aws_s3_bucket" "main" {
  #checkov:skip=CKV_AWS_18:Access logs would need a second bucket; CloudTrail data events are configured per account.
  #checkov:skip=CKV_AWS_144:Training data and results are not replicated to another region, which would double their price.
  #checkov:skip=CKV2_AWS_62:The cluster does not use event notifications of the bucket.
  count         = local.own_bucket
  bucket        = local.names["aws_s3_bucket.main"]
  force_destroy = var.bucket_force_destroy

  # The bucket is destroyed before its key: if its deletion fails, its objects remain readable.
  depends_on = [aws_kms_key.bucket]
}

resource "aws_s3_bucket_versioning" "main" {
  count  = local.own_bucket
  bucket = aws_s3_bucket.main[0].id
  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "main" {
  count  = local.own_bucket
  bucket = aws_s3_bucket.main[0].id
  rule {
    # A bucket key serves many objects; otherwise each read of a small file is a request to KMS.
    bucket_key_enabled = true
    apply_server_side_encryption_by_default {
      sse_algorithm     = "aws:kms"
      kms_master_key_id = local.bucket_keys[0]
    }
  }
}

resource "aws_s3_bucket_public_access_block" "main" {
  count                   = local.own_bucket
  bucket                  = aws_s3_bucket.main[0].id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

data "aws_iam_policy_document" "bucket" {
  statement {
    sid       = "OnlyTls"
    effect    = "Deny"
    actions   = ["s3:*"]
    resources = [local.bucket_arn, "${local.bucket_arn}/*"]
    principals {
      type        = "*"
      identifiers = ["*"]
    }
    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }
}

resource "aws_s3_bucket_policy" "main" {
  count  = local.own_bucket
  bucket = aws_s3_bucket.main[0].id
  policy = data.aws_iam_policy_document.bucket.json

  depends_on = [aws_s3_bucket_public_access_block.main]
}

resource "aws_s3_bucket_lifecycle_configuration" "main" {
  count  = local.own_bucket
  bucket = aws_s3_bucket.main[0].id

  rule {
    id     = "old-versions"
    status = "Enabled"
    filter {}
    # Deletes old versions of overwritten checkpoints.
    noncurrent_version_expiration {
      noncurrent_days = 30
    }
    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }
    expiration {
      expired_object_delete_marker = true
    }
  }

  depends_on = [aws_s3_bucket_versioning.main]
}

resource "aws_security_group" "filesystem" {
  count       = local.has_efs_driver || var.fsx != null ? 1 : 0
  name        = local.names["aws_security_group.filesystem"]
  description = "File systems of ${var.name}: from its nodes alone"
  vpc_id      = local.vpc_id
  tags        = { Name = local.names["aws_security_group.filesystem"] }
}

resource "aws_vpc_security_group_ingress_rule" "nfs" {
  count                        = local.has_efs_driver ? 1 : 0
  security_group_id            = aws_security_group.filesystem[0].id
  referenced_security_group_id = aws_security_group.node.id
  ip_protocol                  = "tcp"
  from_port                    = 2049
  to_port                      = 2049
  description                  = "NFS from nodes"
  tags                         = { Name = "${local.names["aws_security_group.filesystem"]}-nfs" }
}

resource "aws_efs_file_system" "main" {
  count            = var.efs != null ? 1 : 0
  creation_token   = local.names["aws_efs_file_system.main"]
  encrypted        = true
  kms_key_id       = local.key_arns["file_systems"]
  performance_mode = "generalPurpose"
  throughput_mode  = var.efs.throughput
  tags             = { Name = local.names["aws_efs_file_system.main"] }

  lifecycle_policy {
    transition_to_ia = "AFTER_30_DAYS"
  }
  lifecycle_policy {
    transition_to_primary_storage_class = "AFTER_1_ACCESS"
  }
}

data "aws_iam_policy_document" "efs" {
  count     = var.efs != null ? 1 : 0
  policy_id = var.name # EFS generates an id if none is given

  statement {
    sid       = "MountTargets"
    actions   = ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite", "elasticfilesystem:ClientRootAccess"]
    resources = [aws_efs_file_system.main[0].arn]
    principals {
      type        = "AWS"
      identifiers = ["*"]
    }
    condition {
      test     = "Bool"
      variable = "elasticfilesystem:AccessedViaMountTarget"
      values   = ["true"]
    }
  }

  statement {
    sid       = "OnlyTls"
    effect    = "Deny"
    actions   = ["*"]
    resources = [aws_efs_file_system.main[0].arn]
    principals {
      type        = "AWS"
      identifiers = ["*"]
    }
    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }
}

resource "aws_efs_file_system_policy" "main" {
  count          = var.efs != null ? 1 : 0
  file_system_id = aws_efs_file_system.main[0].id
  policy         = data.aws_iam_policy_document.efs[0].json
}

resource "aws_efs_mount_target" "main" {
  for_each        = toset(var.efs != null ? local.zones : [])
  file_system_id  = aws_efs_file_system.main[0].id
  subnet_id       = local.subnets[each.key][0]
  security_groups = [aws_security_group.filesystem[0].id]
}

# Pods with different user ids write files with the same owner.
resource "aws_efs_access_point" "main" {
  count          = var.efs != null ? 1 : 0
  file_system_id = aws_efs_file_system.main[0].id
  tags           = { Name = local.names["aws_efs_access_point.main"] }

  posix_user {
    uid = 1000
    gid = 1000
  }

  root_directory {
    path = "/windlass"
    creation_info {
      owner_uid   = 1000
      owner_gid   = 1000
      permissions = "0770"
    }
  }
}
