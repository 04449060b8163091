# Execution role of SageMaker training jobs.

resource "aws_iam_role" "sagemaker" {
  count                = var.sagemaker ? 1 : 0
  name                 = local.names["aws_iam_role.sagemaker"]
  path                 = var.iam.path
  permissions_boundary = var.iam.permissions_boundary
  description          = "SageMaker training jobs beside the cluster ${var.name}"
  assume_role_policy   = data.aws_iam_policy_document.trust["sagemaker"].json
}

data "aws_iam_policy_document" "sagemaker" {
  source_policy_documents = [data.aws_iam_policy_document.bucket_access.json]

  statement {
    sid     = "Images"
    actions = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
    # 763104351884 publishes the AWS Deep Learning Containers.
    resources = concat(local.repository_arns, ["arn:${local.partition}:ecr:${var.region}:763104351884:repository/*"])
  }

  statement {
    sid       = "Login"
    actions   = ["ecr:GetAuthorizationToken"] # cannot be limited to resources
    resources = ["*"]
  }

  statement {
    sid       = "Logs"
    actions   = ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
    resources = ["arn:${local.partition}:logs:${var.region}:${local.account_id}:log-group:/aws/sagemaker/TrainingJobs:*"]
  }

  statement {
    sid       = "Metrics"
    actions   = ["cloudwatch:PutMetricData"] # can be limited to namespaces only
    resources = ["*"]
    condition {
      test     = "StringEquals"
      variable = "cloudwatch:namespace"
      values   = ["/aws/sagemaker/TrainingJobs"]
    }
  }
}

resource "aws_iam_role_policy" "sagemaker" {
  count  = var.sagemaker ? 1 : 0
  name   = "training"
  role   = aws_iam_role.sagemaker[0].id
  policy = data.aws_iam_policy_document.sagemaker.json
}
