# Logs and the budget.

resource "aws_cloudwatch_log_group" "cluster" {
  #checkov:skip=CKV_AWS_338:log_retention_days sets the retention; the default is a year.
  name              = local.names["aws_cloudwatch_log_group.cluster"]
  retention_in_days = var.log_retention_days
  kms_key_id        = local.key_arns["logs"]
}

resource "aws_cloudwatch_log_group" "flow" {
  #checkov:skip=CKV_AWS_338:log_retention_days sets the retention; the default is a year.
  count             = local.own_vpc
  name              = local.names["aws_cloudwatch_log_group.flow"]
  retention_in_days = var.log_retention_days
  kms_key_id        = local.key_arns["logs"]
}

resource "aws_cloudwatch_log_group" "fsx" {
  #checkov:skip=CKV_AWS_338:log_retention_days sets the retention; the default is a year.
  count             = var.fsx == null ? 0 : 1
  name              = local.names["aws_cloudwatch_log_group.fsx"]
  retention_in_days = var.log_retention_days
  kms_key_id        = local.key_arns["logs"]
}

resource "aws_iam_role" "flow" {
  count                = local.own_vpc
  name                 = local.names["aws_iam_role.flow"]
  path                 = var.iam.path
  permissions_boundary = var.iam.permissions_boundary
  description          = "Log of refused connections in the VPC of ${var.name}"
  assume_role_policy   = data.aws_iam_policy_document.trust["flow"].json
}

data "aws_iam_policy_document" "flow" {
  count = local.own_vpc

  statement {
    sid       = "Write"
    actions   = ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
    resources = [aws_cloudwatch_log_group.flow[0].arn, "${aws_cloudwatch_log_group.flow[0].arn}:log-stream:*"]
  }
}

resource "aws_iam_role_policy" "flow" {
  count  = local.own_vpc
  name   = "logs"
  role   = aws_iam_role.flow[0].id
  policy = data.aws_iam_policy_document.flow[0].json
}

# For the whole account, because costs by tag require that the account has activated the tag for cost allocation.
resource "aws_budgets_budget" "main" {
  count        = var.budget == null ? 0 : 1
  name         = local.names["aws_budgets_budget.main"]
  budget_type  = "COST"
  time_unit    = "MONTHLY"
  limit_amount = tostring(var.budget.limit_usd)
  limit_unit   = "USD"

  dynamic "notification" {
    for_each = { ACTUAL = 80, FORECASTED = 100 }
    content {
      notification_type          = notification.key
      threshold                  = notification.value
      threshold_type             = "PERCENTAGE"
      comparison_operator        = "GREATER_THAN"
      subscriber_email_addresses = [var.budget.email]
    }
  }
}
