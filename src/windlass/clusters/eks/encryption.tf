# A KMS key for each purpose, 1 USD/month each: secrets, logs, file systems and image repositories, and one for the bucket,
# which `down` keeps with its objects. Keys in var.key_arns and var.bucket_key_arn belong to others and are only used.

locals {
  purposes = concat(
    ["secrets", "logs"],
    length(var.repositories) > 0 ? ["registry"] : [],
    local.has_efs_driver || try(var.fsx.deployment, "") == "PERSISTENT_2" ? ["file_systems"] : [],
  )
  own_keys = setsubtract(local.purposes, keys(var.key_arns))
  key_arns = merge({ for purpose, key in aws_kms_key.main : purpose => key.arn }, var.key_arns)
}

data "aws_iam_policy_document" "key" {
  #checkov:skip=CKV_AWS_109:The resource of a key policy is the key itself, and AWS's default key policy delegates permissions to IAM.
  #checkov:skip=CKV_AWS_111:The resource of a key policy is the key itself, and AWS's default key policy delegates permissions to IAM.
  #checkov:skip=CKV_AWS_356:The resource of a key policy is the key itself.
  for_each = local.own_keys

  statement {
    sid       = "Account"
    actions   = ["kms:*"]
    resources = ["*"]
    principals {
      type        = "AWS"
      identifiers = ["arn:${local.partition}:iam::${local.account_id}:root"]
    }
  }

  dynamic "statement" {
    for_each = each.key == "logs" ? [1] : []
    content {
      sid       = "Logs"
      actions   = ["kms:Encrypt*", "kms:Decrypt*", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:Describe*"]
      resources = ["*"]
      principals {
        type        = "Service"
        identifiers = ["logs.${var.region}.amazonaws.com"]
      }
      condition {
        test     = "ArnEquals"
        variable = "kms:EncryptionContext:aws:logs:arn"
        values = [
          for group in ["cluster", "flow", "fsx"] :
          "arn:${local.partition}:logs:${var.region}:${local.account_id}:log-group:${local.names["aws_cloudwatch_log_group.${group}"]}"
        ]
      }
    }
  }
}

resource "aws_kms_key" "main" {
  for_each                = local.own_keys
  description             = "${each.key} of the Windlass cluster ${var.name}"
  enable_key_rotation     = true
  deletion_window_in_days = 7
  policy                  = data.aws_iam_policy_document.key[each.key].json
  tags                    = { Name = "${var.name}-${each.key}" }
}

resource "aws_kms_alias" "main" {
  for_each      = local.own_keys
  name          = replace(local.names["aws_kms_alias.main"], "{key}", each.key)
  target_key_id = aws_kms_key.main[each.key].key_id
}

data "aws_iam_policy_document" "bucket_key" {
  #checkov:skip=CKV_AWS_109:The resource of a key policy is the key itself, and AWS's default key policy delegates permissions to IAM.
  #checkov:skip=CKV_AWS_111:The resource of a key policy is the key itself, and AWS's default key policy delegates permissions to IAM.
  #checkov:skip=CKV_AWS_356:The resource of a key policy is the key itself.
  statement {
    sid       = "Account"
    actions   = ["kms:*"]
    resources = ["*"]
    principals {
      type        = "AWS"
      identifiers = ["arn:${local.partition}:iam::${local.account_id}:root"]
    }
  }

  # FSx accesses the bucket with a service-linked role, whose name ends with the id of the file system.
  dynamic "statement" {
    for_each = var.fsx == null ? [] : [1]
    content {
      sid       = "FsxDataRepository"
      actions   = ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"]
      resources = ["*"]
      principals {
        type        = "AWS"
        identifiers = ["*"]
      }
      condition {
        test     = "StringEquals"
        variable = "kms:CallerAccount"
        values   = [local.account_id]
      }
      condition {
        test     = "ArnLike"
        variable = "aws:PrincipalArn"
        values = [
          "arn:${local.partition}:iam::${local.account_id}:role/aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/AWSServiceRoleForFSxS3Access_fs-*"
        ]
      }
    }
  }
}

resource "aws_kms_key" "bucket" {
  count                   = local.own_bucket_key
  description             = "Bucket ${local.bucket} of the Windlass cluster ${var.name}"
  enable_key_rotation     = true
  deletion_window_in_days = 7
  policy                  = data.aws_iam_policy_document.bucket_key.json
  tags                    = { Name = "${var.name}-bucket" }
}

resource "aws_kms_alias" "bucket" {
  count         = local.own_bucket_key
  name          = local.names["aws_kms_alias.bucket"]
  target_key_id = aws_kms_key.bucket[0].key_id
}
