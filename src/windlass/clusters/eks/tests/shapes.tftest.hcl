# Plans of typical clusters, without AWS: `terraform init -backend=false && terraform test`.

mock_provider "aws" {
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws", dns_suffix = "amazonaws.com" }
  }
  mock_data "aws_availability_zones" {
    defaults = { names = ["eu-west-1c", "eu-west-1a", "eu-west-1b", "eu-west-1d"] }
  }
  mock_data "aws_iam_policy_document" {
    defaults = { json = "{}" }
  }
  mock_data "aws_ssm_parameter" {
    defaults = { insecure_value = "ami-0fedcba9876543210" }
  }
  mock_data "aws_eks_addon_version" {
    defaults = { version = "v3.0.0-eksbuild.1" }
  }
}

variables {
  name   = "vision"
  region = "eu-west-1"
}

run "defaults" {
  command = plan

  assert {
    condition     = aws_launch_template.system.user_data == null && output.proxy_environment == null && length(aws_vpc_endpoint.interface) == 0 && output.vpc_managed
    error_message = "Without a proxy nothing names one, and with NAT there are no interface endpoints."
  }
  assert {
    condition     = output.zones == tolist(["eu-west-1a", "eu-west-1b", "eu-west-1c"])
    error_message = "The first three zones by name must be used."
  }
  assert {
    condition     = aws_subnet.private["eu-west-1b"].cidr_block == "10.40.32.0/19" && aws_subnet.public["eu-west-1b"].cidr_block == "10.40.228.0/22"
    error_message = "The subnets of a zone must depend only on its position."
  }
  assert {
    condition     = alltrue([for subnet in aws_subnet.public : subnet.map_public_ip_on_launch != true]) && length(aws_nat_gateway.main) == 1
    error_message = "There must be one NAT gateway, and no public addresses."
  }
  assert {
    condition     = aws_eks_cluster.main.vpc_config[0].endpoint_private_access && !aws_eks_cluster.main.vpc_config[0].endpoint_public_access
    error_message = "The API server must be reachable only from the VPC."
  }
  assert {
    condition     = aws_eks_cluster.main.version == "1.35" && aws_eks_cluster.main.access_config[0].authentication_mode == "API" && length(aws_eks_cluster.main.enabled_cluster_log_types) == 5
    error_message = "The cluster must run Kubernetes 1.35 with access entries and all logs."
  }
  assert {
    condition     = aws_eks_node_group.system.ami_type == "AL2023_x86_64_STANDARD" && length(aws_eks_node_group.gpu) == 0
    error_message = "System nodes must run AL2023, and there must be no GPU nodes."
  }
  assert {
    condition     = aws_s3_bucket.main[0].bucket == "windlass-vision-123456789012" && !aws_s3_bucket.main[0].force_destroy && aws_s3_bucket_public_access_block.main[0].restrict_public_buckets
    error_message = "The bucket must have its default name, be private, and not be deleted with its objects."
  }
  assert {
    condition     = toset(keys(aws_eks_addon.pod)) == toset(["aws-ebs-csi-driver", "coredns"]) && length(aws_efs_file_system.main) == 0 && length(aws_fsx_lustre_file_system.main) == 0
    error_message = "Drivers must be installed only if they are needed."
  }
  assert {
    condition     = alltrue([for template in [aws_launch_template.system] : template.metadata_options[0].http_tokens == "required" && template.metadata_options[0].http_put_response_hop_limit == 1])
    error_message = "Pods must not reach the nodes' credentials."
  }
  assert {
    condition     = aws_iam_role_policies_exclusive.main["run"].policy_names == toset(["bucket"]) && length(aws_iam_role_policy_attachments_exclusive.main["run"].policy_arns) == 0
    error_message = "The role of the runs must have one inline policy and no attached ones."
  }
  assert {
    condition     = toset(keys(local.roles)) == toset(["cluster", "node", "flow", "run", "vpc_cni", "ebs_csi", "karpenter", "karpenter_node", "load_balancer_controller"])
    error_message = "Each role must have exclusive policies."
  }
  assert {
    condition     = aws_eks_pod_identity_association.driver["vpc_cni"].service_account == "aws-node" && endswith(aws_iam_role_policy_attachment.vpc_cni.policy_arn, "/AmazonEKS_CNI_Policy") && !contains(local.node_policies, "AmazonEKS_CNI_Policy")
    error_message = "The VPC CNI must have its permissions by pod identity, and nodes must not have them."
  }
  assert {
    condition     = output.karpenter.queue_name == "vision-karpenter" && output.karpenter.node_role_name == "vision-karpenter-node"
    error_message = "Karpenter's queue and role have their names."
  }
}

run "all_options" {
  command = plan

  variables {
    zones                 = ["eu-west-1a", "eu-west-1b"]
    nat                   = "per-zone"
    kubernetes_version    = "1.36"
    endpoint_public_cidrs = ["203.0.113.7/32"]
    admin_principals      = ["arn:aws:iam::123456789012:role/platform"]
    user_principals       = ["arn:aws:iam::123456789012:role/research"]
    namespace             = "training"
    system_nodes          = { instance_types = ["m7g.large"], max = 6 }
    gpu_pools = {
      a10g = { instance_types = ["g5.12xlarge", "g5.24xlarge"], capacity = "spot", labels = { team = "vision" } }
      h100 = {
        instance_types       = ["p5.48xlarge"]
        efa_interfaces       = 32
        placement_group      = true
        parallel_pull        = true
        disk_throughput_mibs = 1000
      }
      block = {
        instance_types          = ["p5.48xlarge"]
        capacity                = "capacity-block"
        capacity_reservation_id = "cr-0123456789abcdef0"
        zone                    = "eu-west-1b"
        max                     = 2
      }
    }
    efs                  = { throughput = "bursting" }
    fsx                  = { deployment = "PERSISTENT_2", throughput = 250, size_gib = 2400, export_deleted = true }
    s3_files             = true
    s3_mountpoint        = true
    bucket_name          = "results"
    bucket_force_destroy = true
    repositories         = ["vision", "team/serve"]
    sagemaker            = true
    budget               = { limit_usd = 500, email = "someone@example.com" }
    tags                 = { team = "vision" }
  }

  assert {
    condition     = length(aws_nat_gateway.main) == 2 && length(aws_eip.nat) == 2
    error_message = "There must be one NAT gateway per zone."
  }
  assert {
    condition     = aws_eks_cluster.main.vpc_config[0].endpoint_public_access && aws_eks_cluster.main.vpc_config[0].public_access_cidrs == toset(["203.0.113.7/32"])
    error_message = "The API server must be open only to the listed ranges."
  }
  assert {
    condition     = aws_eks_access_policy_association.main["arn:aws:iam::123456789012:role/research"].access_scope[0].namespaces == toset(["training"]) && endswith(aws_eks_access_policy_association.main["arn:aws:iam::123456789012:role/platform"].policy_arn, "AmazonEKSClusterAdminPolicy")
    error_message = "Users must have permissions in the namespace, administrators in the cluster."
  }
  assert {
    condition     = aws_eks_node_group.system.ami_type == "AL2023_ARM_64_STANDARD"
    error_message = "Graviton nodes must use an arm64 image."
  }
  assert {
    condition     = aws_eks_node_group.gpu["a10g"].capacity_type == "SPOT" && aws_eks_node_group.gpu["a10g"].scaling_config[0].min_size == 0 && aws_eks_node_group.gpu["a10g"].scaling_config[0].desired_size == 0
    error_message = "GPU nodes must start at zero."
  }
  assert {
    condition     = aws_eks_node_group.gpu["a10g"].labels["windlass.dev/pool"] == "a10g" && aws_eks_node_group.gpu["a10g"].labels["team"] == "vision" && one(aws_eks_node_group.gpu["a10g"].taint).key == "nvidia.com/gpu"
    error_message = "GPU nodes must have their labels and their taint."
  }
  assert {
    condition     = toset(keys(aws_eks_addon.pod)) == toset(["aws-ebs-csi-driver", "aws-efs-csi-driver", "aws-fsx-csi-driver", "aws-mountpoint-s3-csi-driver", "coredns"])
    error_message = "All drivers must be installed."
  }
  assert {
    condition     = length(aws_efs_mount_target.main) == 2 && aws_efs_file_system.main[0].throughput_mode == "bursting" && aws_efs_file_system.main[0].encrypted
    error_message = "EFS must have a mount target in each zone."
  }
  assert {
    condition     = length(aws_cloudcontrolapi_resource.s3_files_mount_target) == 2 && length(aws_iam_role.sagemaker) == 1 && length(aws_ecr_repository.main) == 2
    error_message = "S3 Files, the SageMaker role and the repositories must be created."
  }
  assert {
    condition     = aws_s3_bucket.main[0].bucket == "results" && aws_budgets_budget.main[0].limit_amount == "500"
    error_message = "Names and limits must be as configured."
  }
  assert {
    condition     = length(aws_launch_template.gpu["h100"].network_interfaces) == 32 && aws_launch_template.gpu["h100"].network_interfaces[0].interface_type == "efa" && aws_launch_template.gpu["h100"].network_interfaces[31].interface_type == "efa-only"
    error_message = "There must be one interface per network card, and the first must have the node's address."
  }
  assert {
    condition     = aws_launch_template.gpu["h100"].network_interfaces[0].device_index == 0 && aws_launch_template.gpu["h100"].network_interfaces[31].device_index == 1 && aws_launch_template.gpu["h100"].network_interfaces[31].network_card_index == 31
    error_message = "Each interface must be on its network card."
  }
  assert {
    condition     = aws_launch_template.gpu["h100"].placement[0].group_name == "vision-gpu-h100" && aws_placement_group.gpu["h100"].strategy == "cluster"
    error_message = "Nodes must share a placement group."
  }
  assert {
    condition     = local.pool_zones["h100"] == tolist(["eu-west-1b"])
    error_message = "Nodes of a placement group must be in the zone of the file system."
  }
  assert {
    condition     = strcontains(base64decode(aws_launch_template.gpu["h100"].user_data), "\"FastImagePull\": true") && aws_launch_template.gpu["h100"].block_device_mappings[0].ebs[0].iops == 4000
    error_message = "Image layers must be unpacked in parallel on a fast disk."
  }
  assert {
    condition     = aws_eks_node_group.gpu["block"].capacity_type == "CAPACITY_BLOCK" && aws_launch_template.gpu["block"].instance_market_options[0].market_type == "capacity-block"
    error_message = "Nodes must be started in the capacity block."
  }
  assert {
    condition     = aws_launch_template.gpu["block"].capacity_reservation_specification[0].capacity_reservation_target[0].capacity_reservation_id == "cr-0123456789abcdef0" && aws_launch_template.gpu["block"].instance_type == "p5.48xlarge"
    error_message = "The launch template must contain the capacity block and its instance type."
  }
  assert {
    condition     = local.pool_zones["block"] == tolist(["eu-west-1b"])
    error_message = "Nodes must be in the zone of the capacity block."
  }
  assert {
    condition     = contains(aws_fsx_data_repository_association.main[0].s3[0].auto_export_policy[0].events, "DELETED") && !contains(aws_fsx_data_repository_association.main[0].s3[0].auto_import_policy[0].events, "DELETED")
    error_message = "Deletions are exported where that is asked for, and never imported."
  }
}

run "roles_of_a_company" {
  command = plan

  variables {
    iam           = { permissions_boundary = "arn:aws:iam::123456789012:policy/team", path = "/team/" }
    efs           = {}
    s3_files      = true
    s3_mountpoint = true
    sagemaker     = true
  }

  assert {
    condition = alltrue([
      for role in concat(
        [aws_iam_role.cluster, aws_iam_role.node, aws_iam_role.run, aws_iam_role.vpc_cni, aws_iam_role.ebs_csi],
        aws_iam_role.flow, aws_iam_role.efs_csi, aws_iam_role.s3_csi, aws_iam_role.s3_files, aws_iam_role.karpenter,
        aws_iam_role.karpenter_node, aws_iam_role.load_balancer_controller, aws_iam_role.sagemaker,
      ) : role.path == "/team/" && role.permissions_boundary == "arn:aws:iam::123456789012:policy/team"
    ])
    error_message = "Every role must have the boundary and the path."
  }
  assert {
    condition     = aws_iam_instance_profile.karpenter_node[0].path == "/team/"
    error_message = "The instance profile of Karpenter's nodes must have the path."
  }
}

run "a_key_for_each_purpose" {
  command = plan

  variables {
    repositories = ["vision"]
    efs          = {}
  }

  assert {
    condition     = toset(keys(aws_kms_key.main)) == toset(["secrets", "logs", "registry", "file_systems"]) && length(aws_kms_key.bucket) == 1
    error_message = "Each purpose must have a key."
  }
  assert {
    condition     = aws_kms_alias.main["logs"].name == "alias/windlass/vision/logs" && aws_launch_template.system.block_device_mappings[0].ebs[0].kms_key_id == null
    error_message = "Keys must have aliases, and disks the account's default key."
  }
}

run "keys_of_a_company" {
  command = plan

  variables {
    repositories = ["vision"]
    efs          = {}
    fsx          = { deployment = "PERSISTENT_2" }
    gpu_pools    = { a10g = { instance_types = ["g5.12xlarge"] } }
    key_arns = {
      secrets      = "arn:aws:kms:eu-west-1:210987654321:key/secrets"
      logs         = "arn:aws:kms:eu-west-1:210987654321:key/logs"
      file_systems = "arn:aws:kms:eu-west-1:210987654321:key/file-systems"
      registry     = "arn:aws:kms:eu-west-1:210987654321:key/registry"
      disks        = "arn:aws:kms:eu-west-1:210987654321:key/disks"
    }
    bucket_key_arn = "arn:aws:kms:eu-west-1:210987654321:key/bucket"
  }

  assert {
    condition     = length(aws_kms_key.main) + length(aws_kms_key.bucket) + length(aws_kms_alias.main) + length(aws_kms_alias.bucket) == 0
    error_message = "No key may be created."
  }
  assert {
    condition     = aws_eks_cluster.main.encryption_config[0].provider[0].key_arn == var.key_arns["secrets"] && alltrue([for group in concat([aws_cloudwatch_log_group.cluster], aws_cloudwatch_log_group.flow, aws_cloudwatch_log_group.fsx) : group.kms_key_id == var.key_arns["logs"]])
    error_message = "Secrets and logs must be encrypted by their keys."
  }
  assert {
    condition     = aws_efs_file_system.main[0].kms_key_id == var.key_arns["file_systems"] && aws_fsx_lustre_file_system.main[0].kms_key_id == var.key_arns["file_systems"] && aws_ecr_repository.main["vision"].encryption_configuration[0].kms_key == var.key_arns["registry"]
    error_message = "File systems and repositories must be encrypted by their keys."
  }
  assert {
    condition     = alltrue([for template in [aws_launch_template.system, aws_launch_template.gpu["a10g"]] : template.block_device_mappings[0].ebs[0].kms_key_id == var.key_arns["disks"]]) && one(local.bucket_keys) == var.bucket_key_arn
    error_message = "Disks and the bucket must be encrypted by their keys."
  }
}

run "images_of_a_company" {
  command = plan

  variables {
    system_nodes = { ami = "al2023@v20261101" }
    gpu_pools = {
      fixed  = { instance_types = ["g5.12xlarge"], ami = "ami-0123456789abcdef0", labels = { team = "vision" } }
      chosen = { instance_types = ["g5.12xlarge"], ami = "/team/images/gpu:3" }
      g5g    = { instance_types = ["g5g.16xlarge"], ami = "al2023@v20261101", ami_type = "AL2023_ARM_64_NVIDIA" }
      plain  = { instance_types = ["g5.12xlarge"] }
    }
    ami_parameters = ["/team/images/gpu"]
  }

  assert {
    condition = local.ami_parameters == {
      ""     = "/aws/service/eks/optimized-ami/1.35/amazon-linux-2023/x86_64/standard/amazon-eks-node-al2023-x86_64-standard-1.35-v20261101/image_id"
      chosen = "/team/images/gpu:3"
      g5g    = "/aws/service/eks/optimized-ami/1.35/amazon-linux-2023/arm64/nvidia/amazon-eks-node-al2023-arm64-nvidia-1.35-v20261101/image_id"
    }
    error_message = "Releases must have the public parameter of their architecture and variant."
  }
  assert {
    condition     = aws_launch_template.gpu["fixed"].image_id == "ami-0123456789abcdef0" && aws_launch_template.gpu["chosen"].image_id == "ami-0fedcba9876543210" && aws_launch_template.system.image_id == "ami-0fedcba9876543210" && aws_launch_template.gpu["plain"].image_id == null
    error_message = "Launch templates must have the ids of the AMIs."
  }
  assert {
    condition     = aws_eks_node_group.gpu["plain"].ami_type == "AL2023_x86_64_NVIDIA" && aws_launch_template.gpu["plain"].user_data == base64encode(local.user_data["plain"])
    error_message = "Pools without an AMI must have EKS's."
  }
  assert {
    condition     = local.joining["fixed"].kubelet.flags == ["--node-labels=team=vision,windlass.dev/pool=fixed"] && local.joining["fixed"].kubelet.config.registerWithTaints[0].key == "nvidia.com/gpu" && toset(keys(local.joining["fixed"].cluster)) == toset(["apiServerEndpoint", "certificateAuthority", "cidr", "name"])
    error_message = "The user data of other AMIs must have what EKS adds to its own."
  }
  assert {
    condition     = local.joining[""].kubelet.flags == ["--node-labels=windlass.dev/pool=system"] && length(local.joining[""].kubelet.config.registerWithTaints) == 0 && !strcontains(local.user_data["plain"], "apiServerEndpoint")
    error_message = "System nodes must join with their label and without a taint, and EKS's AMIs without the settings."
  }
}

run "a_key_without_a_purpose_is_refused" {
  command = plan
  variables { key_arns = { volumes = "arn:aws:kms:eu-west-1:210987654321:key/disks" } }
  expect_failures = [var.key_arns]
}

run "fsx_without_controllers" {
  command = plan

  variables {
    gpu_pools                = { a100 = { instance_types = ["p4d.24xlarge"], zone = "eu-west-1c" } }
    fsx                      = { import_prefix = "/datasets/" }
    karpenter                = false
    load_balancer_controller = false
  }

  assert {
    condition     = output.fsx_zone == "eu-west-1c" && local.pool_zones["a100"] == tolist(["eu-west-1c"])
    error_message = "The file system is in the zone of the GPU nodes."
  }
  assert {
    condition     = aws_fsx_lustre_file_system.main[0].deployment_type == "SCRATCH_2" && aws_fsx_lustre_file_system.main[0].storage_capacity == 1200 && aws_fsx_lustre_file_system.main[0].skip_final_backup
    error_message = "The cheapest file system that can be linked, without a backup that stays."
  }
  assert {
    condition     = aws_fsx_data_repository_association.main[0].s3[0].auto_export_policy[0].events == tolist(["NEW", "CHANGED"]) && aws_fsx_data_repository_association.main[0].s3[0].auto_import_policy[0].events == tolist(["NEW", "CHANGED"])
    error_message = "Deletions do not pass the link."
  }
  assert {
    condition     = output.karpenter == null && length(aws_sqs_queue.karpenter) == 0 && length(aws_cloudwatch_event_target.karpenter) == 0 && length(aws_iam_role.load_balancer_controller) == 0
    error_message = "Nothing of the controllers is made."
  }
}

run "existing_vpc" {
  command = plan

  variables {
    vpc_id     = "vpc-0a"
    subnet_ids = ["subnet-0c", "subnet-0b", "subnet-0a"]
    efs        = {}
    fsx        = {}
    s3_files   = true
    proxy      = "http://proxy.example.com:3128"
    no_proxy   = [".corp.example.com"]
    gpu_pools  = { p5 = { instance_types = ["p5.48xlarge"], zone = "eu-west-1b", efa_interfaces = 32, placement_group = true } }
  }

  override_data {
    target = data.aws_vpc.existing[0]
    values = {
      id                      = "vpc-0a"
      arn                     = "arn:aws:ec2:eu-west-1:210987654321:vpc/vpc-0a"
      cidr_block_associations = [{ cidr_block = "10.8.0.0/16" }, { cidr_block = "100.64.0.0/16" }]
    }
  }
  override_data {
    target = data.aws_subnet.existing["subnet-0a"]
    values = { vpc_id = "vpc-0a", availability_zone = "eu-west-1b", arn = "arn:aws:ec2:eu-west-1:210987654321:subnet/subnet-0a" }
  }
  override_data {
    target = data.aws_subnet.existing["subnet-0b"]
    values = { vpc_id = "vpc-0a", availability_zone = "eu-west-1b", arn = "arn:aws:ec2:eu-west-1:210987654321:subnet/subnet-0b" }
  }
  override_data {
    target = data.aws_subnet.existing["subnet-0c"]
    values = { vpc_id = "vpc-0a", availability_zone = "eu-west-1a", arn = "arn:aws:ec2:eu-west-1:210987654321:subnet/subnet-0c" }
  }

  assert {
    condition     = length(aws_vpc.main) + length(aws_subnet.private) + length(aws_subnet.public) + length(aws_route_table.private) + length(aws_route_table.public) + length(aws_route.private) + length(aws_route.public) + length(aws_route_table_association.private) + length(aws_route_table_association.public) + length(aws_nat_gateway.main) + length(aws_eip.nat) + length(aws_internet_gateway.main) + length(aws_vpc_endpoint.s3) + length(aws_vpc_endpoint.interface) + length(aws_default_security_group.main) + length(aws_flow_log.main) + length(aws_iam_role.flow) + length(aws_cloudwatch_log_group.flow) == 0
    error_message = "Nothing of an existing VPC must be created or adopted."
  }
  assert {
    condition     = output.zones == tolist(["eu-west-1a", "eu-west-1b"]) && tolist(output.private_subnet_ids) == tolist(["subnet-0c", "subnet-0b", "subnet-0a"]) && output.vpc_id == "vpc-0a" && !output.vpc_managed && length(output.public_subnet_ids) == 0
    error_message = "Zones are those of the subnets, in the order of the list."
  }
  assert {
    condition     = aws_eks_cluster.main.vpc_config[0].subnet_ids == toset(["subnet-0a", "subnet-0b", "subnet-0c"]) && aws_eks_node_group.system.subnet_ids == toset(["subnet-0a", "subnet-0b", "subnet-0c"])
    error_message = "The control plane and the nodes use all subnets."
  }
  assert {
    condition     = aws_eks_node_group.gpu["p5"].subnet_ids == toset(["subnet-0a", "subnet-0b"]) && aws_fsx_lustre_file_system.main[0].subnet_ids == tolist(["subnet-0b"])
    error_message = "Nodes of a placement group use all subnets of one zone, and FSx the first one there."
  }
  assert {
    condition     = { for zone, target in aws_efs_mount_target.main : zone => target.subnet_id } == { eu-west-1a = "subnet-0c", eu-west-1b = "subnet-0b" } && toset(keys(aws_cloudcontrolapi_resource.s3_files_mount_target)) == toset(["eu-west-1a", "eu-west-1b"])
    error_message = "A file system has one mount target in each zone, in its first subnet."
  }
  assert {
    condition     = alltrue([for group in [aws_security_group.node, aws_security_group.filesystem[0]] : group.vpc_id == "vpc-0a"])
    error_message = "Security groups are in the existing VPC."
  }
  assert {
    condition     = !contains(keys(local.roles), "flow") && local.vpc_arn == "arn:aws:ec2:eu-west-1:210987654321:vpc/vpc-0a" && contains(local.subnet_arns, "arn:aws:ec2:eu-west-1:210987654321:subnet/subnet-0c")
    error_message = "Policies name a VPC that another account shares by its own ARN."
  }
  assert {
    condition     = output.proxy_environment.HTTPS_PROXY == "http://proxy.example.com:3128" && output.proxy_environment.NO_PROXY == "localhost,127.0.0.1,169.254.169.254,169.254.170.23,.svc,.cluster.local,10.100.0.0/16,172.20.0.0/16,10.8.0.0/16,100.64.0.0/16,eu-west-1.eks.amazonaws.com,.corp.example.com"
    error_message = "The API server, Services, the VPC and the listed hosts are reached without the proxy."
  }
  assert {
    condition     = alltrue([for data in [aws_launch_template.system.user_data, aws_launch_template.gpu["p5"].user_data] : strcontains(base64decode(data), "\"HTTPS_PROXY\": \"http://proxy.example.com:3128\"")])
    error_message = "All nodes get the proxy."
  }
}

run "no_nat" {
  command = plan

  variables {
    nat               = "none"
    endpoint_services = ["ec2", "ecr.api", "eks-auth"]
    proxy             = "http://10.9.0.1:3128"
  }

  assert {
    condition     = length(aws_nat_gateway.main) + length(aws_eip.nat) + length(aws_internet_gateway.main) + length(aws_subnet.public) + length(aws_route.private) + length(aws_route.public) == 0 && length(aws_subnet.private) == 3
    error_message = "There must be no way to the Internet."
  }
  assert {
    condition     = toset(keys(aws_vpc_endpoint.interface)) == toset(["ec2", "ecr.api", "eks-auth"]) && length(aws_vpc_endpoint.s3) == 1
    error_message = "There must be the endpoint of each service, and that of S3."
  }
  assert {
    condition     = alltrue([for endpoint in aws_vpc_endpoint.interface : endpoint.private_dns_enabled]) && aws_vpc_endpoint.interface["ecr.api"].service_name == "com.amazonaws.eu-west-1.ecr.api" && aws_vpc_security_group_ingress_rule.endpoint[0].from_port == 443
    error_message = "Names of services must lead to the endpoints, which nodes reach by HTTPS."
  }
  assert {
    condition     = length(setsubtract(["10.40.0.0/16", "s3.eu-west-1.amazonaws.com", "api.ecr.eu-west-1.amazonaws.com", "eks-auth.eu-west-1.api.aws"], local.no_proxy)) == 0
    error_message = "Endpoints must be reached without the proxy."
  }
}

run "a_subnet_of_another_vpc_is_refused" {
  command = plan
  variables {
    vpc_id     = "vpc-0a"
    subnet_ids = ["subnet-0a", "subnet-0b"]
  }
  override_data {
    target = data.aws_vpc.existing[0]
    values = { cidr_block_associations = [{ cidr_block = "10.8.0.0/16" }] }
  }
  override_data {
    target = data.aws_subnet.existing["subnet-0a"]
    values = { vpc_id = "vpc-0a", availability_zone = "eu-west-1a" }
  }
  override_data {
    target = data.aws_subnet.existing["subnet-0b"]
    values = { vpc_id = "vpc-0b", availability_zone = "eu-west-1b" }
  }
  expect_failures = [data.aws_subnet.existing["subnet-0b"]]
}

run "subnets_of_one_zone_are_refused" {
  command = plan
  variables {
    vpc_id     = "vpc-0a"
    subnet_ids = ["subnet-0a", "subnet-0b"]
  }
  override_data {
    target = data.aws_vpc.existing[0]
    values = { cidr_block_associations = [{ cidr_block = "10.8.0.0/16" }] }
  }
  override_data {
    target = data.aws_subnet.existing["subnet-0a"]
    values = { vpc_id = "vpc-0a", availability_zone = "eu-west-1a" }
  }
  override_data {
    target = data.aws_subnet.existing["subnet-0b"]
    values = { vpc_id = "vpc-0a", availability_zone = "eu-west-1a" }
  }
  expect_failures = [aws_eks_cluster.main]
}

run "endpoints_in_an_existing_vpc_are_refused" {
  command = plan
  variables {
    vpc_id            = "vpc-0a"
    subnet_ids        = ["subnet-0a", "subnet-0b"]
    endpoint_services = ["ec2"]
  }
  override_data {
    target = data.aws_vpc.existing[0]
    values = { cidr_block_associations = [{ cidr_block = "10.8.0.0/16" }] }
  }
  override_data {
    target = data.aws_subnet.existing["subnet-0a"]
    values = { vpc_id = "vpc-0a", availability_zone = "eu-west-1a" }
  }
  override_data {
    target = data.aws_subnet.existing["subnet-0b"]
    values = { vpc_id = "vpc-0a", availability_zone = "eu-west-1b" }
  }
  expect_failures = [var.endpoint_services]
}

run "a_vpc_without_subnets_is_refused" {
  command = plan
  variables { vpc_id = "vpc-0a" }
  expect_failures = [var.subnet_ids]
}

run "an_open_endpoint_is_refused" {
  command = plan
  variables { endpoint_public_cidrs = ["0.0.0.0/0"] }
  expect_failures = [var.endpoint_public_cidrs]
}

run "a_capacity_block_needs_its_reservation_and_zone" {
  command = plan
  variables { gpu_pools = { block = { instance_types = ["p5.48xlarge"], capacity = "capacity-block" } } }
  expect_failures = [var.gpu_pools]
}

run "a_pool_in_another_zone_is_refused" {
  command = plan
  variables { gpu_pools = { far = { instance_types = ["g5.xlarge"], zone = "eu-west-1d" } } }
  expect_failures = [aws_eks_node_group.gpu["far"]]
}

run "bucket_of_others" {
  command = plan

  variables {
    bucket_name    = "shared-results"
    bucket_managed = false
  }

  assert {
    condition     = length(aws_s3_bucket.main) + length(aws_s3_bucket_policy.main) + length(aws_s3_bucket_lifecycle_configuration.main) + length(aws_s3_bucket_versioning.main) + length(aws_s3_bucket_public_access_block.main) + length(aws_s3_bucket_server_side_encryption_configuration.main) == 0
    error_message = "Nothing of a bucket of others is managed."
  }
  assert {
    condition     = length(data.aws_s3_bucket.main) == 1 && length(local.bucket_keys) == 0
    error_message = "It is read, and the cluster's key is none of its."
  }
}

run "bucket_of_others_is_not_linked" {
  command = plan

  variables {
    bucket_name    = "shared-results"
    bucket_managed = false
    s3_files       = true
  }

  expect_failures = [var.bucket_managed]
}
