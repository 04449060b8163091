# The role of the AWS Load Balancer Controller. The statements grant the permissions of the policy published by its project,
# limited to this account, region and VPC, and to this cluster's tag where the controller sets it.

locals {
  elb              = "arn:${local.partition}:elasticloadbalancing:${var.region}:${local.account_id}"
  balancers        = ["${local.elb}:loadbalancer/app/*/*", "${local.elb}:loadbalancer/net/*/*"]
  target_groups    = ["${local.elb}:targetgroup/*/*"]
  listeners        = ["${local.elb}:listener/app/*/*/*", "${local.elb}:listener/net/*/*/*"]
  listener_rules   = ["${local.elb}:listener-rule/app/*/*/*", "${local.elb}:listener-rule/net/*/*/*"]
  balancer_cluster = "elbv2.k8s.aws/cluster"
  ec2_groups       = "${local.ec2}:${local.account_id}:security-group/*"
}

data "aws_iam_policy_document" "load_balancer_controller" {
  count = var.load_balancer_controller ? 1 : 0

  # Describe actions cannot be limited to resources.
  statement {
    sid = "Read"
    actions = [
      "ec2:DescribeAccountAttributes", "ec2:DescribeAddresses", "ec2:DescribeAvailabilityZones",
      "ec2:DescribeInstances", "ec2:DescribeInternetGateways", "ec2:DescribeIpamPools",
      "ec2:DescribeNetworkInterfaces", "ec2:DescribeRouteTables", "ec2:DescribeSecurityGroups",
      "ec2:DescribeSubnets", "ec2:DescribeTags", "ec2:DescribeVpcPeeringConnections", "ec2:DescribeVpcs",
      "elasticloadbalancing:DescribeCapacityReservation", "elasticloadbalancing:DescribeListenerAttributes",
      "elasticloadbalancing:DescribeListenerCertificates", "elasticloadbalancing:DescribeListeners",
      "elasticloadbalancing:DescribeLoadBalancerAttributes", "elasticloadbalancing:DescribeLoadBalancers",
      "elasticloadbalancing:DescribeRules", "elasticloadbalancing:DescribeSSLPolicies",
      "elasticloadbalancing:DescribeTags", "elasticloadbalancing:DescribeTargetGroupAttributes",
      "elasticloadbalancing:DescribeTargetGroups", "elasticloadbalancing:DescribeTargetHealth",
      "elasticloadbalancing:DescribeTrustStores",
    ]
    resources = ["*"]
  }

  statement {
    sid       = "ReadGroups"
    actions   = ["ec2:GetSecurityGroupsForVpc"]
    resources = [local.vpc_arn]
  }

  # Certificate discovery for TLS listeners.
  statement {
    sid       = "ListCertificates"
    actions   = ["acm:ListCertificates"]
    resources = ["*"]
  }

  statement {
    sid       = "ReadCertificates"
    actions   = ["acm:DescribeCertificate"]
    resources = ["arn:${local.partition}:acm:${var.region}:${local.account_id}:certificate/*"]
  }

  statement {
    sid     = "ServiceRole"
    actions = ["iam:CreateServiceLinkedRole"]
    resources = [
      "arn:${local.partition}:iam::${local.account_id}:role/aws-service-role/elasticloadbalancing.amazonaws.com/AWSServiceRoleForElasticLoadBalancing"
    ]
    condition {
      test     = "StringEquals"
      variable = "iam:AWSServiceName"
      values   = ["elasticloadbalancing.amazonaws.com"]
    }
  }

  # Rules in the nodes' security groups that admit load balancers; only groups of this VPC.
  statement {
    sid       = "NodeRules"
    actions   = ["ec2:AuthorizeSecurityGroupIngress", "ec2:RevokeSecurityGroupIngress"]
    resources = [local.ec2_groups]
    condition {
      test     = "ArnEquals"
      variable = "ec2:Vpc"
      values   = [local.vpc_arn]
    }
  }

  statement {
    sid       = "CreateGroup"
    actions   = ["ec2:CreateSecurityGroup"]
    resources = [local.ec2_groups, local.vpc_arn]
  }

  statement {
    sid       = "TagNewGroup"
    actions   = ["ec2:CreateTags"]
    resources = [local.ec2_groups]
    condition {
      test     = "StringEquals"
      variable = "ec2:CreateAction"
      values   = ["CreateSecurityGroup"]
    }
    condition {
      test     = "StringEquals"
      variable = "aws:RequestTag/${local.balancer_cluster}"
      values   = [var.name]
    }
  }

  statement {
    sid       = "OwnGroups"
    actions   = ["ec2:CreateTags", "ec2:DeleteSecurityGroup", "ec2:DeleteTags"]
    resources = [local.ec2_groups]
    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/${local.balancer_cluster}"
      values   = [var.name]
    }
  }

  statement {
    sid       = "Create"
    actions   = ["elasticloadbalancing:CreateLoadBalancer", "elasticloadbalancing:CreateTargetGroup"]
    resources = concat(local.balancers, local.target_groups)
    condition {
      test     = "StringEquals"
      variable = "aws:RequestTag/${local.balancer_cluster}"
      values   = [var.name]
    }
  }

  statement {
    sid       = "TagNew"
    actions   = ["elasticloadbalancing:AddTags"]
    resources = concat(local.balancers, local.target_groups)
    condition {
      test     = "StringEquals"
      variable = "elasticloadbalancing:CreateAction"
      values   = ["CreateLoadBalancer", "CreateTargetGroup"]
    }
    condition {
      test     = "StringEquals"
      variable = "aws:RequestTag/${local.balancer_cluster}"
      values   = [var.name]
    }
  }

  statement {
    sid = "Own"
    actions = [
      "elasticloadbalancing:AddTags", "elasticloadbalancing:DeleteLoadBalancer",
      "elasticloadbalancing:DeleteTargetGroup", "elasticloadbalancing:DeregisterTargets",
      "elasticloadbalancing:ModifyCapacityReservation", "elasticloadbalancing:ModifyIpPools",
      "elasticloadbalancing:ModifyLoadBalancerAttributes", "elasticloadbalancing:ModifyTargetGroup",
      "elasticloadbalancing:ModifyTargetGroupAttributes", "elasticloadbalancing:RegisterTargets",
      "elasticloadbalancing:RemoveTags", "elasticloadbalancing:SetIpAddressType",
      "elasticloadbalancing:SetSecurityGroups", "elasticloadbalancing:SetSubnets",
    ]
    resources = concat(local.balancers, local.target_groups)
    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/${local.balancer_cluster}"
      values   = [var.name]
    }
  }

  # Listeners of a network load balancer are tagged only after creation.
  statement {
    sid = "Listeners"
    actions = [
      "elasticloadbalancing:AddListenerCertificates", "elasticloadbalancing:AddTags",
      "elasticloadbalancing:CreateListener", "elasticloadbalancing:CreateRule", "elasticloadbalancing:DeleteListener",
      "elasticloadbalancing:DeleteRule", "elasticloadbalancing:ModifyListener",
      "elasticloadbalancing:ModifyListenerAttributes", "elasticloadbalancing:ModifyRule",
      "elasticloadbalancing:RemoveListenerCertificates", "elasticloadbalancing:RemoveTags",
      "elasticloadbalancing:SetRulePriorities",
    ]
    resources = concat(local.balancers, local.listeners, local.listener_rules)
  }
}

resource "aws_iam_role" "load_balancer_controller" {
  count                = var.load_balancer_controller ? 1 : 0
  name                 = local.names["aws_iam_role.load_balancer_controller"]
  path                 = var.iam.path
  permissions_boundary = var.iam.permissions_boundary
  description          = "AWS Load Balancer Controller in ${var.name}"
  assume_role_policy   = data.aws_iam_policy_document.pod["load_balancer_controller"].json
}

resource "aws_iam_role_policy" "load_balancer_controller" {
  count  = var.load_balancer_controller ? 1 : 0
  name   = "load-balancers"
  role   = aws_iam_role.load_balancer_controller[0].id
  policy = data.aws_iam_policy_document.load_balancer_controller[0].json
}

resource "aws_eks_pod_identity_association" "load_balancer_controller" {
  count           = var.load_balancer_controller ? 1 : 0
  cluster_name    = aws_eks_cluster.main.name
  namespace       = local.pods.load_balancer_controller.namespace
  service_account = local.pods.load_balancer_controller.account
  role_arn        = aws_iam_role.load_balancer_controller[0].arn
}
