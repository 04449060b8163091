# Nodes: a group for components, and training groups that scale from zero.

resource "aws_iam_role" "node" {
  name                 = local.names["aws_iam_role.node"]
  path                 = var.iam.path
  permissions_boundary = var.iam.permissions_boundary
  description          = "Nodes of the EKS cluster ${var.name}"
  assume_role_policy   = data.aws_iam_policy_document.trust["node"].json
}

resource "aws_iam_role_policy_attachment" "node" {
  for_each   = toset(local.node_policies)
  role       = aws_iam_role.node.name
  policy_arn = "arn:${local.partition}:iam::aws:policy/${each.key}"
}

locals {
  node_policies = ["AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly"]
  node_groups   = [aws_eks_cluster.main.vpc_config[0].cluster_security_group_id, aws_security_group.node.id]

  # Graviton: m7g, c8gn, g5g; but not g5 and p4d.
  system_is_arm = anytrue([for type in var.system_nodes.instance_types : can(regex("^[a-z]+[0-9]+g[a-z]*\\.", type))])

  # FSx, placement groups and EFA require a single zone.
  gpu_zone = try([for pool in values(var.gpu_pools) : pool.zone if pool.zone != null][0], local.zones[0])
  pool_zones = {
    for name, pool in var.gpu_pools : name =>
    pool.zone != null ? [pool.zone] : (var.fsx != null || pool.efa_interfaces > 0 || pool.placement_group) ? [local.gpu_zone] : local.zones
  }

  # Configuration for nodeadm: images and scratch data on local NVMe disks, parallel unpacking of image layers, and the
  # proxy of containerd and kubelet. System nodes have the key "".
  environment       = var.proxy == "" ? {} : { environment = { default = local.proxy_environment } }
  has_system_config = var.proxy != "" || var.system_nodes.ami != null
  node_configs = merge(
    { for name in [""] : name => merge({ instance = local.environment }, try(local.joining[name], {})) if local.has_system_config },
    { for name, pool in var.gpu_pools : name => merge(
      { instance = merge({ localStorage = { strategy = "RAID0" } }, local.environment) },
      pool.parallel_pull ? { featureGates = { FastImagePull = true } } : {},
      try(local.joining[name], {}),
    ) },
  )
  user_data = {
    for name, spec in local.node_configs : name => <<-EOT
      MIME-Version: 1.0
      Content-Type: multipart/mixed; boundary="windlass"

      --windlass
      Content-Type: application/node.eks.aws

      ${indent(6, yamlencode({ apiVersion = "node.eks.aws/v1alpha1", kind = "NodeConfig", spec = spec }))}
      --windlass--
    EOT
  }
}

resource "aws_launch_template" "system" {
  name                   = local.names["aws_launch_template.system"]
  description            = "System nodes of ${var.name}"
  update_default_version = true
  image_id               = lookup(local.ami_ids, "", null)
  user_data              = local.has_system_config ? base64encode(local.user_data[""]) : null
  vpc_security_group_ids = local.node_groups

  block_device_mappings {
    device_name = "/dev/xvda"
    ebs {
      volume_type           = "gp3"
      volume_size           = var.system_nodes.disk_gib
      encrypted             = true
      kms_key_id            = lookup(var.key_arns, "disks", null)
      delete_on_termination = true
    }
  }

  metadata_options {
    http_endpoint = "enabled"
    http_tokens   = "required"
    # Pods use Pod Identity; a hop limit of 1 keeps them from the node's role.
    http_put_response_hop_limit = 1
  }

  dynamic "tag_specifications" {
    for_each = ["instance", "volume", "network-interface"]
    content {
      resource_type = tag_specifications.value
      tags          = merge(local.tags, { Name = local.names["aws_launch_template.system"] })
    }
  }
}

resource "aws_eks_node_group" "system" {
  cluster_name    = aws_eks_cluster.main.name
  node_group_name = local.names["aws_eks_node_group.system"]
  node_role_arn   = aws_iam_role.node.arn
  subnet_ids      = local.subnet_ids
  ami_type        = var.system_nodes.ami == null ? local.ami_types[""] : null
  instance_types  = var.system_nodes.instance_types
  labels          = local.node_labels[""]

  launch_template {
    id      = aws_launch_template.system.id
    version = aws_launch_template.system.latest_version
  }

  scaling_config {
    desired_size = var.system_nodes.min
    min_size     = var.system_nodes.min
    max_size     = var.system_nodes.max
  }

  update_config {
    max_unavailable = 1
  }

  lifecycle {
    ignore_changes = [scaling_config[0].desired_size]
  }

  # Pods of aws-node have the role only if its association exists before them.
  depends_on = [aws_iam_role_policy_attachment.node, aws_eks_addon.node, aws_eks_pod_identity_association.driver, aws_route.private, aws_route_table_association.private, aws_vpc_endpoint.interface]
}

resource "aws_placement_group" "gpu" {
  for_each = { for name, pool in var.gpu_pools : name => pool if pool.placement_group }
  name     = replace(local.names["aws_placement_group.gpu"], "{key}", each.key)
  strategy = "cluster"
}

resource "aws_launch_template" "gpu" {
  for_each               = var.gpu_pools
  name                   = replace(local.names["aws_launch_template.gpu"], "{key}", each.key)
  description            = "Nodes of the pool ${each.key} of ${var.name}"
  update_default_version = true
  image_id               = lookup(local.ami_ids, each.key, null)
  user_data              = base64encode(local.user_data[each.key])
  # If network interfaces are listed, security groups must be set on them.
  vpc_security_group_ids = each.value.efa_interfaces > 0 ? null : local.node_groups
  # For a capacity block, EKS reads the instance type from the launch template.
  instance_type = each.value.capacity == "capacity-block" ? each.value.instance_types[0] : null

  block_device_mappings {
    device_name = "/dev/xvda"
    ebs {
      volume_type           = "gp3"
      volume_size           = each.value.disk_gib
      throughput            = each.value.disk_throughput_mibs
      iops                  = max(3000, 4 * each.value.disk_throughput_mibs)
      encrypted             = true
      kms_key_id            = lookup(var.key_arns, "disks", null)
      delete_on_termination = true
    }
  }

  # The first card also carries IP traffic; the others are EFA-only and use no subnet address.
  dynamic "network_interfaces" {
    for_each = range(each.value.efa_interfaces)
    content {
      device_index          = network_interfaces.value == 0 ? 0 : 1
      network_card_index    = network_interfaces.value
      interface_type        = network_interfaces.value == 0 ? "efa" : "efa-only"
      security_groups       = local.node_groups
      delete_on_termination = true
    }
  }

  dynamic "placement" {
    for_each = each.value.placement_group ? [1] : []
    content {
      group_name = aws_placement_group.gpu[each.key].name
    }
  }

  dynamic "instance_market_options" {
    for_each = each.value.capacity == "capacity-block" ? [1] : []
    content {
      market_type = "capacity-block"
    }
  }

  dynamic "capacity_reservation_specification" {
    for_each = each.value.capacity_reservation_id != null ? [1] : []
    content {
      capacity_reservation_target {
        capacity_reservation_id = each.value.capacity_reservation_id
      }
    }
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  dynamic "tag_specifications" {
    for_each = ["instance", "volume", "network-interface"]
    content {
      resource_type = tag_specifications.value
      tags          = merge(local.tags, { Name = replace(local.names["aws_launch_template.gpu"], "{key}", each.key) })
    }
  }
}

resource "aws_eks_node_group" "gpu" {
  for_each        = var.gpu_pools
  cluster_name    = aws_eks_cluster.main.name
  node_group_name = replace(local.names["aws_eks_node_group.gpu"], "{key}", each.key)
  node_role_arn   = aws_iam_role.node.arn
  subnet_ids      = flatten([for zone in local.pool_zones[each.key] : lookup(local.subnets, zone, [])])
  ami_type        = each.value.ami == null ? each.value.ami_type : null
  capacity_type   = { on-demand = "ON_DEMAND", spot = "SPOT", capacity-block = "CAPACITY_BLOCK" }[each.value.capacity]
  instance_types  = each.value.capacity == "capacity-block" ? null : each.value.instance_types
  labels          = local.node_labels[each.key]

  launch_template {
    id      = aws_launch_template.gpu[each.key].id
    version = aws_launch_template.gpu[each.key].latest_version
  }

  scaling_config {
    desired_size = each.value.min
    min_size     = each.value.min
    max_size     = each.value.max
  }

  update_config {
    max_unavailable = 1
  }

  dynamic "taint" {
    for_each = each.value.taint ? [1] : []
    content {
      key    = "nvidia.com/gpu"
      value  = "true"
      effect = "NO_SCHEDULE"
    }
  }

  lifecycle {
    # The autoscaler changes the number of nodes.
    ignore_changes = [scaling_config[0].desired_size]

    precondition {
      condition     = length(setsubtract(local.pool_zones[each.key], local.zones)) == 0
      error_message = "The pool ${each.key} is in ${join(", ", local.pool_zones[each.key])}, but the cluster is in ${join(", ", local.zones)}: add the zone to zones, or a subnet in it to subnet_ids."
    }
  }

  # Pods of aws-node have the role only if its association exists before them.
  depends_on = [aws_iam_role_policy_attachment.node, aws_eks_addon.node, aws_eks_pod_identity_association.driver, aws_route.private, aws_route_table_association.private, aws_vpc_endpoint.interface]
}
