# Amazon S3 Files, through the Cloud Control API: provider 5.100 has no resource for it (6.40 does).

resource "aws_iam_role" "s3_files" {
  count                = var.s3_files ? 1 : 0
  name                 = local.names["aws_iam_role.s3_files"]
  path                 = var.iam.path
  permissions_boundary = var.iam.permissions_boundary
  description          = "S3 Files between ${local.bucket} and its file system"
  assume_role_policy   = data.aws_iam_policy_document.trust["filesystem"].json
}

data "aws_iam_policy_document" "s3_files" {
  statement {
    sid       = "Bucket"
    actions   = ["s3:ListBucket", "s3:ListBucketVersions"]
    resources = [local.bucket_arn]
  }

  statement {
    sid       = "Objects"
    actions   = ["s3:AbortMultipartUpload", "s3:DeleteObject*", "s3:GetObject*", "s3:List*", "s3:PutObject*"]
    resources = ["${local.bucket_arn}/*"]
  }

  statement {
    sid       = "Key"
    actions   = ["kms:Decrypt", "kms:Encrypt", "kms:GenerateDataKey", "kms:ReEncryptFrom", "kms:ReEncryptTo"]
    resources = local.bucket_keys
    condition {
      test     = "StringEquals"
      variable = "kms:ViaService"
      values   = ["s3.${var.region}.amazonaws.com"]
    }
  }

  # S3 Files creates rules with these names to be notified of changes in the bucket.
  statement {
    sid = "Events"
    actions = [
      "events:DeleteRule", "events:DescribeRule", "events:DisableRule", "events:EnableRule", "events:ListTargetsByRule",
      "events:PutRule", "events:PutTargets", "events:RemoveTargets",
    ]
    resources = ["arn:${local.partition}:events:${var.region}:${local.account_id}:rule/DO-NOT-DELETE-S3-Files*"]
  }
}

resource "aws_iam_role_policy" "s3_files" {
  count  = var.s3_files ? 1 : 0
  name   = "bucket"
  role   = aws_iam_role.s3_files[0].id
  policy = data.aws_iam_policy_document.s3_files.json
}

resource "aws_cloudcontrolapi_resource" "s3_files" {
  count     = var.s3_files ? 1 : 0
  type_name = "AWS::S3Files::FileSystem"

  desired_state = jsonencode({
    Bucket              = local.bucket_arn
    RoleArn             = aws_iam_role.s3_files[0].arn
    KmsKeyId            = local.key_arns["file_systems"]
    AcceptBucketWarning = true
    Tags = [
      for key, value in merge(local.tags, { Name = local.names["aws_cloudcontrolapi_resource.s3_files"] }) :
      { Key = key, Value = value }
    ]
  })

  depends_on = [aws_iam_role_policy.s3_files, aws_s3_bucket_versioning.main]
}

resource "aws_cloudcontrolapi_resource" "s3_files_mount_target" {
  for_each  = toset(var.s3_files ? local.zones : [])
  type_name = "AWS::S3Files::MountTarget"

  desired_state = jsonencode({
    FileSystemId   = jsondecode(aws_cloudcontrolapi_resource.s3_files[0].properties)["FileSystemId"]
    SubnetId       = local.subnets[each.key][0]
    SecurityGroups = [aws_security_group.filesystem[0].id]
  })
}
