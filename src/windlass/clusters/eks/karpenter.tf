# Resources for Karpenter 1: roles of its controller and its nodes, and a queue with node termination events.
# The statements follow Karpenter's documentation, without permissions that the instance profile below makes unnecessary.

resource "aws_iam_role" "karpenter_node" {
  count                = var.karpenter ? 1 : 0
  name                 = local.names["aws_iam_role.karpenter_node"]
  path                 = var.iam.path
  permissions_boundary = var.iam.permissions_boundary
  description          = "Nodes that Karpenter starts for ${var.name}"
  assume_role_policy   = data.aws_iam_policy_document.trust["node"].json
}

resource "aws_iam_role_policy_attachment" "karpenter_node" {
  for_each   = toset(var.karpenter ? local.node_policies : [])
  role       = aws_iam_role.karpenter_node[0].name
  policy_arn = "arn:${local.partition}:iam::aws:policy/${each.key}"
}

resource "aws_iam_instance_profile" "karpenter_node" {
  count = var.karpenter ? 1 : 0
  name  = local.names["aws_iam_instance_profile.karpenter_node"]
  path  = var.iam.path
  role  = aws_iam_role.karpenter_node[0].name
}

# EKS creates the access entries of managed node groups itself, but not this one.
resource "aws_eks_access_entry" "karpenter_node" {
  count         = var.karpenter ? 1 : 0
  cluster_name  = aws_eks_cluster.main.name
  principal_arn = aws_iam_role.karpenter_node[0].arn
  type          = "EC2_LINUX"
}

locals {
  ec2       = "arn:${local.partition}:ec2:${var.region}"
  owned_tag = "kubernetes.io/cluster/${var.name}"
  karpenter_makes = [
    for kind in ["fleet", "instance", "launch-template", "network-interface", "spot-instances-request", "volume"] :
    "${local.ec2}:${local.account_id}:${kind}/*"
  ]
}

data "aws_iam_policy_document" "karpenter" {
  count = var.karpenter ? 1 : 0

  statement {
    sid     = "StartFrom"
    actions = ["ec2:CreateFleet", "ec2:RunInstances"]
    resources = [
      "${local.ec2}::image/*", "${local.ec2}::snapshot/*",
      "${local.ec2}:${local.account_id}:capacity-reservation/*",
    ]
  }

  statement {
    sid       = "StartIn"
    actions   = ["ec2:CreateFleet", "ec2:RunInstances"]
    resources = concat(local.subnet_arns, [aws_security_group.node.arn])
  }

  # Selects the group that EKS creates by its tag. With the cluster's attribute, the policy would be unknown whenever a
  # plan changes the cluster.
  statement {
    sid       = "StartWith"
    actions   = ["ec2:CreateFleet", "ec2:RunInstances"]
    resources = ["${local.ec2}:${local.account_id}:security-group/*"]
    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/aws:eks:cluster-name"
      values   = [var.name]
    }
  }

  statement {
    sid       = "StartByTemplate"
    actions   = ["ec2:CreateFleet", "ec2:RunInstances"]
    resources = ["${local.ec2}:${local.account_id}:launch-template/*"]
    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/${local.owned_tag}"
      values   = ["owned"]
    }
    condition {
      test     = "StringLike"
      variable = "aws:ResourceTag/karpenter.sh/nodepool"
      values   = ["*"]
    }
  }

  statement {
    sid       = "Start"
    actions   = ["ec2:CreateFleet", "ec2:CreateLaunchTemplate", "ec2:RunInstances"]
    resources = local.karpenter_makes
    condition {
      test     = "StringEquals"
      variable = "aws:RequestTag/${local.owned_tag}"
      values   = ["owned"]
    }
    condition {
      test     = "StringEquals"
      variable = "aws:RequestTag/eks:eks-cluster-name"
      values   = [var.name]
    }
    condition {
      test     = "StringLike"
      variable = "aws:RequestTag/karpenter.sh/nodepool"
      values   = ["*"]
    }
  }

  statement {
    sid       = "TagAtStart"
    actions   = ["ec2:CreateTags"]
    resources = local.karpenter_makes
    condition {
      test     = "StringEquals"
      variable = "aws:RequestTag/${local.owned_tag}"
      values   = ["owned"]
    }
    condition {
      test     = "StringEquals"
      variable = "ec2:CreateAction"
      values   = ["CreateFleet", "CreateLaunchTemplate", "RunInstances"]
    }
    condition {
      test     = "StringLike"
      variable = "aws:RequestTag/karpenter.sh/nodepool"
      values   = ["*"]
    }
  }

  statement {
    sid       = "Tag"
    actions   = ["ec2:CreateTags"]
    resources = ["${local.ec2}:${local.account_id}:instance/*"]
    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/${local.owned_tag}"
      values   = ["owned"]
    }
    condition {
      test     = "ForAllValues:StringEquals"
      variable = "aws:TagKeys"
      values   = ["eks:eks-cluster-name", "karpenter.sh/nodeclaim", "Name"]
    }
  }

  statement {
    sid     = "End"
    actions = ["ec2:DeleteLaunchTemplate", "ec2:TerminateInstances"]
    resources = [
      "${local.ec2}:${local.account_id}:instance/*", "${local.ec2}:${local.account_id}:launch-template/*",
    ]
    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/${local.owned_tag}"
      values   = ["owned"]
    }
    condition {
      test     = "StringLike"
      variable = "aws:ResourceTag/karpenter.sh/nodepool"
      values   = ["*"]
    }
  }

  # EC2 Describe actions, prices and the list of instance profiles cannot be limited to resources.
  statement {
    sid = "Read"
    actions = [
      "ec2:DescribeCapacityReservations", "ec2:DescribeImages", "ec2:DescribeInstances",
      "ec2:DescribeInstanceStatus", "ec2:DescribeInstanceTypeOfferings", "ec2:DescribeInstanceTypes",
      "ec2:DescribeLaunchTemplates", "ec2:DescribeSecurityGroups", "ec2:DescribeSpotPriceHistory", "ec2:DescribeSubnets",
    ]
    resources = ["*"]
    condition {
      test     = "StringEquals"
      variable = "aws:RequestedRegion"
      values   = [var.region]
    }
  }

  statement {
    sid       = "ReadPricesAndProfiles"
    actions   = ["iam:ListInstanceProfiles", "pricing:GetProducts"]
    resources = ["*"]
  }

  statement {
    sid       = "ReadProfile"
    actions   = ["iam:GetInstanceProfile"]
    resources = [aws_iam_instance_profile.karpenter_node[0].arn]
  }

  statement {
    sid     = "ReadImages"
    actions = ["ssm:GetParameter"]
    resources = concat(
      ["arn:${local.partition}:ssm:${var.region}::parameter/aws/service/*"],
      [for name in var.ami_parameters : "arn:${local.partition}:ssm:${var.region}:${local.account_id}:parameter${name}"],
    )
  }

  statement {
    sid       = "PassRole"
    actions   = ["iam:PassRole"]
    resources = [aws_iam_role.karpenter_node[0].arn]
    condition {
      test     = "StringEquals"
      variable = "iam:PassedToService"
      values   = ["ec2.amazonaws.com"]
    }
  }

  statement {
    sid       = "Queue"
    actions   = ["sqs:DeleteMessage", "sqs:GetQueueUrl", "sqs:ReceiveMessage"]
    resources = [aws_sqs_queue.karpenter[0].arn]
  }

  statement {
    sid       = "Cluster"
    actions   = ["eks:DescribeCluster"]
    resources = [local.cluster_arn]
  }
}

resource "aws_iam_role" "karpenter" {
  count                = var.karpenter ? 1 : 0
  name                 = local.names["aws_iam_role.karpenter"]
  path                 = var.iam.path
  permissions_boundary = var.iam.permissions_boundary
  description          = "Karpenter in ${var.name}"
  assume_role_policy   = data.aws_iam_policy_document.pod["karpenter"].json
}

resource "aws_iam_role_policy" "karpenter" {
  count  = var.karpenter ? 1 : 0
  name   = "nodes"
  role   = aws_iam_role.karpenter[0].id
  policy = data.aws_iam_policy_document.karpenter[0].json
}

resource "aws_eks_pod_identity_association" "karpenter" {
  count           = var.karpenter ? 1 : 0
  cluster_name    = aws_eks_cluster.main.name
  namespace       = local.pods.karpenter.namespace
  service_account = local.pods.karpenter.account
  role_arn        = aws_iam_role.karpenter[0].arn
}

resource "aws_sqs_queue" "karpenter" {
  count                     = var.karpenter ? 1 : 0
  name                      = local.names["aws_sqs_queue.karpenter"]
  message_retention_seconds = 300
  sqs_managed_sse_enabled   = true
}

data "aws_iam_policy_document" "queue" {
  count = var.karpenter ? 1 : 0

  statement {
    sid       = "Events"
    actions   = ["sqs:SendMessage"]
    resources = [aws_sqs_queue.karpenter[0].arn]
    principals {
      type        = "Service"
      identifiers = ["events.amazonaws.com"]
    }
    condition {
      test     = "ArnEquals"
      variable = "aws:SourceArn"
      values   = [for rule in aws_cloudwatch_event_rule.karpenter : rule.arn]
    }
  }

  statement {
    sid       = "OnlyTls"
    effect    = "Deny"
    actions   = ["sqs:*"]
    resources = [aws_sqs_queue.karpenter[0].arn]
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

resource "aws_sqs_queue_policy" "karpenter" {
  count     = var.karpenter ? 1 : 0
  queue_url = aws_sqs_queue.karpenter[0].id
  policy    = data.aws_iam_policy_document.queue[0].json
}

locals {
  karpenter_events = {
    health      = { source = "aws.health", type = "AWS Health Event" }
    interrupted = { source = "aws.ec2", type = "EC2 Spot Instance Interruption Warning" }
    rebalance   = { source = "aws.ec2", type = "EC2 Instance Rebalance Recommendation" }
    reservation = { source = "aws.ec2", type = "EC2 Capacity Reservation Instance Interruption Warning" }
    state       = { source = "aws.ec2", type = "EC2 Instance State-change Notification" }
  }
}

resource "aws_cloudwatch_event_rule" "karpenter" {
  for_each      = var.karpenter ? local.karpenter_events : {}
  name          = replace(local.names["aws_cloudwatch_event_rule.karpenter"], "{key}", each.key)
  description   = "${each.value.type}, for Karpenter in ${var.name}"
  event_pattern = jsonencode({ source = [each.value.source], detail-type = [each.value.type] })
}

resource "aws_cloudwatch_event_target" "karpenter" {
  for_each  = var.karpenter ? local.karpenter_events : {}
  rule      = aws_cloudwatch_event_rule.karpenter[each.key].name
  target_id = "queue"
  arn       = aws_sqs_queue.karpenter[0].arn
}
