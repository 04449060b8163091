# AMIs that the variables name for node groups: an id, a release of EKS's AMIs, or a parameter of Systems Manager. System nodes
# have the key "". Nodes of other groups run the current release of EKS's AMI.

locals {
  ami_types = merge(
    { "" = local.system_is_arm ? "AL2023_ARM_64_STANDARD" : "AL2023_x86_64_STANDARD" },
    { for name, pool in var.gpu_pools : name => pool.ami_type },
  )
  amis = {
    for name, ami in merge({ "" = var.system_nodes.ami }, { for name, pool in var.gpu_pools : name => pool.ami }) :
    name => ami if ami != null
  }
  # The public parameter of a release has its architecture and its variant: x86_64 and nvidia for AL2023_x86_64_NVIDIA.
  ami_kinds = {
    for name, type in local.ami_types : name =>
    [strcontains(type, "_ARM_") ? "arm64" : "x86_64", lower(reverse(split("_", type))[0])]
  }
  ami_parameters = {
    for name, ami in local.amis : name => startswith(ami, "/") ? ami : join("/", [
      "/aws/service/eks/optimized-ami/${var.kubernetes_version}/amazon-linux-2023", local.ami_kinds[name][0], local.ami_kinds[name][1],
      "amazon-eks-node-al2023-${local.ami_kinds[name][0]}-${local.ami_kinds[name][1]}-${var.kubernetes_version}-${split("@", ami)[1]}", "image_id",
    ]) if !startswith(ami, "ami-")
  }
  ami_ids = {
    for name, ami in local.amis : name => startswith(ami, "ami-") ? ami : data.aws_ssm_parameter.ami[name].insecure_value
  }

  # EKS adds these settings to the user data of its own AMIs alone.
  node_labels = merge(
    { "" = { "windlass.dev/pool" = "system" } },
    { for name, pool in var.gpu_pools : name => merge(pool.labels, { "windlass.dev/pool" = name }) },
  )
  joining = {
    for name in keys(local.amis) : name => {
      cluster = {
        name                 = aws_eks_cluster.main.name
        apiServerEndpoint    = aws_eks_cluster.main.endpoint
        certificateAuthority = aws_eks_cluster.main.certificate_authority[0].data
        cidr                 = one(aws_eks_cluster.main.kubernetes_network_config[*].service_ipv4_cidr)
      }
      kubelet = {
        flags = ["--node-labels=${join(",", [for key, value in local.node_labels[name] : "${key}=${value}"])}"]
        config = {
          registerWithTaints = [
            for taint in try(var.gpu_pools[name].taint, false) ? ["nvidia.com/gpu"] : [] :
            { key = taint, value = "true", effect = "NoSchedule" }
          ]
        }
      }
    }
  }
}

data "aws_ssm_parameter" "ami" {
  for_each = local.ami_parameters
  name     = each.value

  lifecycle {
    postcondition {
      condition     = startswith(self.insecure_value, "ami-")
      error_message = "The parameter ${each.value} must contain the id of an AMI."
    }
  }
}
