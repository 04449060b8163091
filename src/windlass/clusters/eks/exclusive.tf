# Each role has exactly the policies listed here. Policies attached outside Terraform are drift, and the next apply
# detaches them. `windlass cluster status` compares security group rules.

locals {
  every_role = {
    cluster = {
      is_made  = true, name = aws_iam_role.cluster.name, inline = [],
      attached = [aws_iam_role_policy_attachment.cluster.policy_arn]
    }
    node = {
      is_made  = true, name = aws_iam_role.node.name, inline = [],
      attached = [for one in aws_iam_role_policy_attachment.node : one.policy_arn]
    }
    flow = {
      is_made  = local.own_vpc == 1, name = one(aws_iam_role.flow[*].name), inline = aws_iam_role_policy.flow[*].name,
      attached = []
    }
    run = { is_made = true, name = aws_iam_role.run.name, inline = [aws_iam_role_policy.run.name], attached = [] }
    vpc_cni = {
      is_made  = true, name = aws_iam_role.vpc_cni.name, inline = [],
      attached = [aws_iam_role_policy_attachment.vpc_cni.policy_arn]
    }
    ebs_csi = {
      is_made  = true, name = aws_iam_role.ebs_csi.name, inline = [],
      attached = [aws_iam_role_policy_attachment.ebs_csi.policy_arn]
    }
    efs_csi = {
      is_made  = local.has_efs_driver, name = one(aws_iam_role.efs_csi[*].name), inline = aws_iam_role_policy.efs_csi[*].name,
      attached = [for one in aws_iam_role_policy_attachment.efs_csi : one.policy_arn]
    }
    s3_csi = {
      is_made  = var.s3_mountpoint, name = one(aws_iam_role.s3_csi[*].name), inline = aws_iam_role_policy.s3_csi[*].name,
      attached = []
    }
    s3_files = {
      is_made  = var.s3_files, name = one(aws_iam_role.s3_files[*].name), inline = aws_iam_role_policy.s3_files[*].name,
      attached = []
    }
    karpenter = {
      is_made  = var.karpenter, name = one(aws_iam_role.karpenter[*].name), inline = aws_iam_role_policy.karpenter[*].name,
      attached = []
    }
    karpenter_node = {
      is_made  = var.karpenter, name = one(aws_iam_role.karpenter_node[*].name), inline = [],
      attached = [for one in aws_iam_role_policy_attachment.karpenter_node : one.policy_arn]
    }
    load_balancer_controller = {
      is_made = var.load_balancer_controller, name = one(aws_iam_role.load_balancer_controller[*].name),
      inline  = aws_iam_role_policy.load_balancer_controller[*].name, attached = []
    }
    sagemaker = {
      is_made  = var.sagemaker, name = one(aws_iam_role.sagemaker[*].name), inline = aws_iam_role_policy.sagemaker[*].name,
      attached = []
    }
  }
  roles = { for key, role in local.every_role : key => role if role.is_made }
}

resource "aws_iam_role_policies_exclusive" "main" {
  for_each     = local.roles
  role_name    = each.value.name
  policy_names = each.value.inline
}

resource "aws_iam_role_policy_attachments_exclusive" "main" {
  for_each    = local.roles
  role_name   = each.value.name
  policy_arns = each.value.attached
}
