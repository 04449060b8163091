output "name" {
  description = "Name of the cluster."
  value       = aws_eks_cluster.main.name
}

output "region" {
  description = "AWS region."
  value       = var.region
}

output "account_id" {
  description = "AWS account."
  value       = local.account_id
}

output "arn" {
  description = "ARN of the cluster."
  value       = aws_eks_cluster.main.arn
}

output "endpoint" {
  description = "URL of the API server."
  value       = aws_eks_cluster.main.endpoint
}

output "certificate_authority" {
  description = "CA certificate of the API server, PEM in base64."
  value       = aws_eks_cluster.main.certificate_authority[0].data
}

output "kubernetes_version" {
  description = "Version of Kubernetes."
  value       = aws_eks_cluster.main.version
}

output "addon_versions" {
  description = "Versions of the EKS add-ons. Later applies keep them if addon_versions contains them."
  value       = { for name in concat(local.node_addons, keys(local.pod_addons)) : name => local.addon_versions[name] }
}

output "oidc_issuer" {
  description = "Issuer of service account tokens."
  value       = aws_eks_cluster.main.identity[0].oidc[0].issuer
}

output "vpc_id" {
  description = "Id of the VPC."
  value       = local.vpc_id
}

output "vpc_managed" {
  description = "Whether Terraform created the VPC."
  value       = local.own_vpc == 1
}

output "proxy_environment" {
  description = "Environment variables of the proxy, or null."
  value       = var.proxy == "" ? null : local.proxy_environment
}

output "zones" {
  description = "Availability zones."
  value       = local.zones
}

output "private_subnet_ids" {
  description = "Subnets of nodes and pods, in the order of the zones."
  value       = local.subnet_ids
}

output "public_subnet_ids" {
  description = "Subnets of NAT gateways and load balancers, in the order of the zones; empty in an existing VPC."
  value       = [for zone in keys(local.public_cidrs) : aws_subnet.public[zone].id]
}

output "cluster_security_group_id" {
  description = "Security group created by EKS for the control plane and all nodes."
  value       = aws_eks_cluster.main.vpc_config[0].cluster_security_group_id
}

output "node_security_group_id" {
  description = "Additional security group of the nodes, for EFA and file systems."
  value       = aws_security_group.node.id
}

output "bucket" {
  description = "Name of the bucket."
  value       = one(concat(aws_s3_bucket.main[*].id, data.aws_s3_bucket.main[*].id))
}

output "repositories" {
  description = "URL of each image repository."
  value       = { for name, repository in aws_ecr_repository.main : name => repository.repository_url }
}

output "efs_id" {
  description = "Id of the shared file system (EFS), or null."
  value       = one(aws_efs_file_system.main[*].id)
}

output "efs_access_point_id" {
  description = "Access point of the shared file system, or null."
  value       = one(aws_efs_access_point.main[*].id)
}

output "s3_files_id" {
  description = "Id of the S3 Files file system of the bucket, or null."
  value       = one([for resource in aws_cloudcontrolapi_resource.s3_files : jsondecode(resource.properties)["FileSystemId"]])
}

output "fsx_id" {
  description = "Id of the parallel file system (FSx for Lustre), or null."
  value       = one(aws_fsx_lustre_file_system.main[*].id)
}

output "fsx_dns_name" {
  description = "DNS name of the parallel file system, or null."
  value       = one(aws_fsx_lustre_file_system.main[*].dns_name)
}

output "fsx_mount_name" {
  description = "Mount name of the parallel file system, or null."
  value       = one(aws_fsx_lustre_file_system.main[*].mount_name)
}

output "fsx_association_id" {
  description = "Data repository association of the parallel file system, or null."
  value       = one(aws_fsx_data_repository_association.main[*].id)
}

output "fsx_zone" {
  description = "Availability zone of the parallel file system, or null."
  value       = var.fsx == null ? null : local.gpu_zone
}

output "sagemaker_role_arn" {
  description = "Role of SageMaker's training jobs, or null."
  value       = one(aws_iam_role.sagemaker[*].arn)
}

output "namespace" {
  description = "Namespace of the runs."
  value       = var.namespace
}

output "service_account" {
  description = "Service account of the runs' pods."
  value       = var.service_account
}

output "run_role_arn" {
  description = "Role of the runs' pods."
  value       = aws_iam_role.run.arn
}

output "node_role_arn" {
  description = "Role of the nodes of node groups."
  value       = aws_iam_role.node.arn
}

output "karpenter" {
  description = "Settings for Karpenter: its queue, its role, and the role and instance profile of its nodes; or null."
  value = var.karpenter ? {
    queue_name          = aws_sqs_queue.karpenter[0].name
    controller_role_arn = aws_iam_role.karpenter[0].arn
    node_role_name      = aws_iam_role.karpenter_node[0].name
    instance_profile    = aws_iam_instance_profile.karpenter_node[0].name
  } : null
}

output "load_balancer_controller_role_arn" {
  description = "Role of the AWS Load Balancer Controller, or null."
  value       = one(aws_iam_role.load_balancer_controller[*].arn)
}

output "key_arns" {
  description = "ARN of the KMS key of each purpose: secrets, logs, file_systems, registry, disks."
  value       = local.key_arns
}

output "bucket_key_arn" {
  description = "ARN of the bucket's key, or null."
  value       = one(local.bucket_keys)
}

output "gpu_pools" {
  description = "Names of the pools for training."
  value       = keys(var.gpu_pools)
}
