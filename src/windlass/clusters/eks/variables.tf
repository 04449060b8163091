# Costs are list prices of us-east-1 in 2026, for orientation; `windlass prices` has the dated table.

variable "name" {
  description = "Name of the cluster and prefix of all resource names. 3 to 30 characters. No default. Free."
  type        = string
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,28}[a-z0-9]$", var.name))
    error_message = "The name must have 3 to 30 lower-case letters, digits and '-', and start with a letter."
  }
}

variable "region" {
  description = "AWS region, such as us-west-2. No default. Prices differ between regions by up to half."
  type        = string
  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "region must be a region name such as us-west-2."
  }
}

variable "zones" {
  description = "Names of availability zones, at least two. Default [] = the first `zone_count` available zones; list them to keep the zones fixed. Each zone adds a subnet pair and mount targets, which are free."
  type        = list(string)
  default     = []
  validation {
    condition     = length(var.zones) == 0 || (length(var.zones) >= 2 && length(var.zones) <= 6 && length(distinct(var.zones)) == length(var.zones))
    error_message = "zones must have two to six different zones, or be empty."
  }
  validation {
    condition     = alltrue([for zone in var.zones : startswith(zone, var.region)])
    error_message = "All zones must be in the region."
  }
}

variable "zone_count" {
  description = "Number of availability zones if `zones` is empty, 2 to 6. Default 3. Traffic between zones costs 0.01 USD/GB in each direction."
  type        = number
  default     = 3
  validation {
    condition     = var.zone_count >= 2 && var.zone_count <= 6
    error_message = "zone_count must be 2 to 6: EKS needs two zones, and the address range has subnets for six."
  }
}

variable "kubernetes_version" {
  description = "Version of Kubernetes, MAJOR.MINOR; one step up at a time. Default 1.35. A version past its standard support costs six times as much an hour."
  type        = string
  default     = "1.35"
  validation {
    condition     = can(regex("^1\\.[0-9]{2}$", var.kubernetes_version))
    error_message = "kubernetes_version must be MAJOR.MINOR, such as 1.35."
  }
}

variable "support_type" {
  description = "STANDARD: AWS upgrades the control plane when standard support ends. EXTENDED: the version is kept, for 0.60 instead of 0.10 USD/hour. Default STANDARD."
  type        = string
  default     = "STANDARD"
  validation {
    condition     = contains(["STANDARD", "EXTENDED"], var.support_type)
    error_message = "The support type must be STANDARD or EXTENDED."
  }
}

variable "vpc_cidr" {
  description = "Private addresses of nodes and pods, /16 to /20. Default 10.40.0.0/16; choose another range if networks are peered. Free."
  type        = string
  default     = "10.40.0.0/16"
  validation {
    condition     = can(cidrnetmask(var.vpc_cidr)) && try(tonumber(split("/", var.vpc_cidr)[1]), 0) >= 16 && try(tonumber(split("/", var.vpc_cidr)[1]), 99) <= 20
    error_message = "The address range must be /16 to /20, such as 10.40.0.0/16."
  }
}

variable "vpc_id" {
  description = "Id of an existing VPC, in which no subnet, route, gateway or endpoint is created or changed. Default \"\" = a new VPC. Free; traffic costs what its routes cost."
  type        = string
  default     = ""
}

variable "subnet_ids" {
  description = "Ids of the subnets of `vpc_id` for nodes and pods, in at least two zones. Default [] = new subnets. Free."
  type        = list(string)
  default     = []
  validation {
    condition     = (var.vpc_id == "") == (length(var.subnet_ids) == 0) && (var.vpc_id == "" || length(var.zones) == 0)
    error_message = "An existing VPC needs vpc_id and subnet_ids, and no zones: they are those of the subnets."
  }
}

variable "nat" {
  description = "NAT gateways of a new VPC: `one`, one `per-zone` so that zones do not depend on each other, or `none` for no way to the Internet. Default one. Each costs 0.045 USD/hour and 0.045 USD/GB."
  type        = string
  default     = "one"
  validation {
    condition     = contains(["one", "per-zone", "none"], var.nat)
    error_message = "The value must be one, per-zone or none."
  }
}

variable "endpoint_services" {
  description = "AWS services of the interface endpoints in a new VPC, such as ec2 and ecr.api, for nodes without a way to the Internet; S3 always has a gateway endpoint. Default []. Each costs 0.01 USD/hour in each zone, and 0.01 USD/GB."
  type        = list(string)
  default     = []
  validation {
    condition     = var.vpc_id == "" || length(var.endpoint_services) == 0
    error_message = "The owner of an existing VPC creates its endpoints."
  }
}

variable "proxy" {
  description = "URL of an HTTP proxy for nodes, such as http://proxy.example.com:3128; also an output for components and runs. Default \"\" = none. Free."
  type        = string
  default     = ""
}

variable "no_proxy" {
  description = "Hosts, domains and CIDR ranges reached without the proxy, in addition to those of the cluster and its VPC. Default []. Free."
  type        = list(string)
  default     = []
}

variable "endpoint_public_cidrs" {
  description = "CIDR ranges that may reach the API server over the Internet. Default [] = only the VPC. Free."
  type        = list(string)
  default     = []
  validation {
    condition     = alltrue([for cidr in var.endpoint_public_cidrs : can(cidrnetmask(cidr)) && !endswith(cidr, "/0")])
    error_message = "Each entry must be a CIDR range such as 203.0.113.7/32; 0.0.0.0/0 is not allowed."
  }
}

variable "admin_principals" {
  description = "ARNs of IAM roles and users that administer the cluster, in addition to its creator, which EKS adds automatically and which must not be listed. Default []. Free."
  type        = list(string)
  default     = []
  validation {
    condition     = alltrue([for arn in var.admin_principals : can(regex("^arn:[a-z-]+:iam::[0-9]{12}:(role|user)/", arn))])
    error_message = "Each entry must be the ARN of a role or user, such as arn:aws:iam::123456789012:role/platform."
  }
}

variable "user_principals" {
  description = "ARNs of IAM roles and users that start runs in `namespace`. Default []. Free."
  type        = list(string)
  default     = []
  validation {
    condition     = alltrue([for arn in var.user_principals : can(regex("^arn:[a-z-]+:iam::[0-9]{12}:(role|user)/", arn))])
    error_message = "Each entry must be the ARN of a role or user, such as arn:aws:iam::123456789012:role/research."
  }
  validation {
    condition     = length(setintersection(var.user_principals, var.admin_principals)) == 0
    error_message = "An administrator must not be listed as a user too."
  }
}

variable "iam" {
  description = "The permissions boundary (ARN of a policy) and the path of every role and instance profile. Default {} = none and /. Free."
  type = object({
    permissions_boundary = optional(string)
    path                 = optional(string, "/")
  })
  default = {}
  validation {
    condition     = can(regex("^/([A-Za-z0-9_+=,.@-]+/)*$", var.iam.path))
    error_message = "The path must begin and end with '/', such as /team/, with letters, digits and '_+=,.@-' between them."
  }
}

variable "namespace" {
  description = "Kubernetes namespace of the runs; its pods get the role for the bucket. Default `default`. Free."
  type        = string
  default     = "default"
}

variable "service_account" {
  description = "Kubernetes service account of the runs' pods in `namespace`. Default `default`. Free."
  type        = string
  default     = "default"
}

variable "system_nodes" {
  description = "Nodes for components: instance types (first one preferred; one architecture), minimum and maximum nodes, disk in GiB, AMI. Default 2 to 4 of m7i.large with 50 GiB and EKS's AMI. Each m7i.large costs 0.10 USD/hour, its disk 0.08 USD/GiB-month."
  type = object({
    instance_types = optional(list(string), ["m7i.large"])
    min            = optional(number, 2)
    max            = optional(number, 4)
    disk_gib       = optional(number, 50)
    ami            = optional(string)
  })
  default = {}
  validation {
    condition     = var.system_nodes.min >= 1 && var.system_nodes.max >= var.system_nodes.min
    error_message = "min must be at least 1, and max at least min, so that components can run."
  }
  validation {
    condition     = length(distinct([for type in var.system_nodes.instance_types : can(regex("^[a-z]+[0-9]+g[a-z]*\\.", type))])) == 1
    error_message = "At least one instance type is required, and all must have the same architecture."
  }
}

variable "gpu_pools" {
  description = "Managed node groups for training by name: instance types, capacity (on-demand, spot or capacity-block with its capacity_reservation_id and zone), minimum nodes (0 = scale from zero) and maximum nodes, zone, EFA interfaces per node (0 = none), a placement group, disk in GiB and its throughput in MiB/s, parallel_pull (unpacks image layers in parallel; needs 600 MiB/s), AMI type, AMI (an id, a release such as al2023@v20261101, or a parameter of Systems Manager), labels, and whether nodes are tainted nvidia.com/gpu. Default {} = none. `min` nodes are paid for at all times; throughput above 125 costs 0.04 USD/MiB/s-month."
  type = map(object({
    instance_types          = list(string)
    capacity                = optional(string, "on-demand")
    capacity_reservation_id = optional(string)
    min                     = optional(number, 0)
    max                     = optional(number, 4)
    zone                    = optional(string)
    efa_interfaces          = optional(number, 0)
    placement_group         = optional(bool, false)
    disk_gib                = optional(number, 200)
    disk_throughput_mibs    = optional(number, 600)
    parallel_pull           = optional(bool, false)
    ami_type                = optional(string, "AL2023_x86_64_NVIDIA")
    ami                     = optional(string)
    labels                  = optional(map(string), {})
    taint                   = optional(bool, true)
  }))
  default = {}
  validation {
    condition     = alltrue([for name, pool in var.gpu_pools : can(regex("^[a-z]([a-z0-9-]{0,18}[a-z0-9])?$", name)) && length(pool.instance_types) > 0])
    error_message = "A pool needs a name of at most 20 lower-case letters, digits and '-', and at least one instance type."
  }
  validation {
    condition     = alltrue([for pool in values(var.gpu_pools) : contains(["on-demand", "spot", "capacity-block"], pool.capacity)])
    error_message = "capacity must be on-demand, spot or capacity-block."
  }
  validation {
    condition     = alltrue([for pool in values(var.gpu_pools) : pool.capacity != "capacity-block" || (pool.capacity_reservation_id != null && pool.zone != null && length(pool.instance_types) == 1)])
    error_message = "A capacity block needs its capacity_reservation_id, its zone, and exactly one instance type."
  }
  validation {
    condition     = alltrue([for pool in values(var.gpu_pools) : pool.min >= 0 && pool.max >= max(pool.min, 1)])
    error_message = "max must be at least 1 and at least min."
  }
  validation {
    condition     = alltrue([for pool in values(var.gpu_pools) : pool.disk_throughput_mibs >= 125 && pool.disk_throughput_mibs <= 1000])
    error_message = "disk_throughput_mibs must be 125 to 1000."
  }
  validation {
    condition     = alltrue([for pool in values(var.gpu_pools) : !pool.parallel_pull || pool.disk_throughput_mibs >= 600])
    error_message = "parallel_pull needs a disk_throughput_mibs of at least 600: on a slower disk it slows pulls down."
  }
  validation {
    condition     = alltrue([for pool in values(var.gpu_pools) : pool.efa_interfaces >= 0 && pool.efa_interfaces <= 32])
    error_message = "efa_interfaces must be 0 to 32, the number of network cards of the instance type."
  }
}

variable "ami_parameters" {
  description = "Names of parameters of Systems Manager with AMIs for Karpenter's nodes, which Karpenter may then read. Default [] = only the public ones of AWS. Free."
  type        = list(string)
  default     = []
}

variable "karpenter" {
  description = "Whether to create the roles, queue and event rules of Karpenter, which starts nodes for pending pods. Default true. The queue costs cents a month; nodes cost what Karpenter starts."
  type        = bool
  default     = true
}

variable "load_balancer_controller" {
  description = "Whether to create the role of the AWS Load Balancer Controller. Default true. Free; each load balancer requested by a Service costs 0.0225 USD/hour."
  type        = bool
  default     = true
}

variable "addon_versions" {
  description = "Versions of EKS add-ons by name, such as { coredns = \"v1.12.1-eksbuild.2\" }. Default {}: EKS's default for the version of Kubernetes at the time of the apply, and the newest EFS driver. Free."
  type        = map(string)
  default     = {}
}

variable "efs" {
  description = "A shared file system (EFS): throughput `elastic` (billed by use: 0.03 USD/GB read, 0.06 written) or `bursting` (grows with the stored data). Default null = none. 0.30 USD/GB-month stored, 0.016 after 30 days without access."
  type        = object({ throughput = optional(string, "elastic") })
  default     = null
  validation {
    condition     = var.efs == null ? true : contains(["elastic", "bursting"], var.efs.throughput)
    error_message = "throughput must be elastic or bursting."
  }
}

variable "fsx" {
  description = "A parallel file system (FSx for Lustre) in the zone of the GPU nodes, linked to `import_prefix` of the bucket: size in GiB (1200, or a multiple of 2400), deployment SCRATCH_2 or PERSISTENT_2, throughput in MB/s per TiB of PERSISTENT_2 (125, 250, 500, 1000), export of new and changed files, export of deletions. Default null = none. SCRATCH_2 costs 0.14 USD/GB-month whether used or not: 168 USD for 1200 GiB."
  type = object({
    size_gib       = optional(number, 1200)
    deployment     = optional(string, "SCRATCH_2")
    throughput     = optional(number)
    import_prefix  = optional(string, "fsx/")
    export         = optional(bool, true)
    export_deleted = optional(bool, false)
  })
  default = null
  validation {
    condition     = var.fsx == null ? true : (var.fsx.size_gib == 1200 || (var.fsx.size_gib > 0 && var.fsx.size_gib % 2400 == 0))
    error_message = "size_gib must be 1200 or a multiple of 2400."
  }
  validation {
    condition     = var.fsx == null ? true : contains(["SCRATCH_2", "PERSISTENT_2"], var.fsx.deployment)
    error_message = "deployment must be SCRATCH_2 or PERSISTENT_2: other types cannot be linked to a bucket."
  }
  validation {
    condition     = var.fsx == null ? true : (var.fsx.throughput == null || (var.fsx.deployment == "PERSISTENT_2" && contains([125, 250, 500, 1000], coalesce(var.fsx.throughput, 0))))
    error_message = "throughput requires PERSISTENT_2 and must be 125, 250, 500 or 1000 MB/s per TiB."
  }
}

variable "s3_files" {
  description = "Whether the bucket can be mounted over NFS (Amazon S3 Files). Default false. Data in active use costs as much as in EFS."
  type        = bool
  default     = false
}

variable "s3_mountpoint" {
  description = "Whether to install the Mountpoint for S3 driver, which mounts the bucket for sequential reads and writes. Default false. Free; requests cost as usual."
  type        = bool
  default     = false
}

variable "key_arns" {
  description = "ARNs of existing KMS keys by purpose: secrets, logs, file_systems, registry, disks. Default {}: a new key for each purpose, 1 USD/month each, and the account's default key for disks (EBS)."
  type        = map(string)
  default     = {}
  validation {
    condition     = length(setsubtract(keys(var.key_arns), ["secrets", "logs", "file_systems", "registry", "disks"])) == 0 && alltrue([for arn in values(var.key_arns) : can(regex("^arn:[a-z-]+:kms:[a-z0-9-]+:[0-9]{12}:key/", arn))])
    error_message = "The purposes are secrets, logs, file_systems, registry and disks, each with the ARN of a key."
  }
}

variable "bucket_name" {
  description = "Name of the bucket for data, code and results. Default \"\" = windlass-NAME-ACCOUNT. 0.023 USD/GB-month; old versions of objects are kept for 30 days and cost the same."
  type        = string
  default     = ""
  validation {
    condition     = var.bucket_name == "" || can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", var.bucket_name))
    error_message = "The bucket name must have 3 to 63 lower-case letters, digits, '-' and '.', without s3://."
  }
}

variable "bucket_managed" {
  description = "Whether Terraform creates the bucket and its settings; false for an existing bucket, whose settings are not changed, and to which the cluster's roles get access. Default true. Free."
  type        = bool
  default     = true
  validation {
    condition     = var.bucket_managed || (var.bucket_name != "" && var.fsx == null && !var.s3_files)
    error_message = "An unmanaged bucket needs a name, and cannot be linked to FSx or S3 Files, which change its notifications."
  }
}

variable "bucket_key_arn" {
  description = "ARN of the existing KMS key that encrypts the bucket. Default \"\": a new key, 1 USD/month; for an unmanaged bucket, none or AWS's own. Each request to KMS costs 0.000003 USD."
  type        = string
  default     = ""
}

variable "bucket_force_destroy" {
  description = "Whether destroying the cluster deletes the objects in the bucket; otherwise a bucket with objects stops the destruction. Default false. Free."
  type        = bool
  default     = false
}

variable "repositories" {
  description = "Names of image repositories (ECR). Default [] = none. 0.10 USD/GB-month; images without a tag are removed after 14 days."
  type        = list(string)
  default     = []
  validation {
    condition     = alltrue([for repository in var.repositories : can(regex("^[a-z0-9][a-z0-9._/-]{1,199}$", repository))])
    error_message = "A repository name may have lower-case letters, digits, '.', '_', '/' and '-'."
  }
}

variable "repositories_force_destroy" {
  description = "Whether destroying the cluster deletes the images in its repositories; otherwise a repository with images stops the destruction. Default false. Free."
  type        = bool
  default     = false
}

variable "sagemaker" {
  description = "Whether to create a role for SageMaker training jobs with access to the bucket and the repositories. Default false. Free."
  type        = bool
  default     = false
}

variable "log_retention_days" {
  description = "Retention in days of the logs of the control plane, rejected connections and FSx. Default 365. 0.50 USD/GB written, 0.03 USD/GB-month kept."
  type        = number
  default     = 365
  validation {
    condition     = contains([1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653], var.log_retention_days)
    error_message = "CloudWatch supports a retention of 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731 … days."
  }
}

variable "budget" {
  description = "An alert to `email` when the account's monthly costs reach 80 % of `limit_usd`, and when the forecast exceeds it. Default null = none. Two budgets are free."
  type        = object({ limit_usd = number, email = string })
  default     = null
  validation {
    condition     = var.budget == null ? true : var.budget.limit_usd > 0
    error_message = "limit_usd must be above zero."
  }
}

variable "tags" {
  description = "Tags for all resources, for cost reports. Default {}. Free."
  type        = map(string)
  default     = {}
  validation {
    condition     = alltrue([for key in keys(var.tags) : !startswith(key, "windlass.dev/") && !startswith(lower(key), "aws:")])
    error_message = "Tags that start with windlass.dev/ or aws: are reserved for Windlass and AWS."
  }
}

variable "endpoints" {
  description = "Service URLs by the provider's service name (ec2, eks, s3, …), for an AWS emulator. Default {} = AWS; so does an empty URL. Free."
  type        = map(string)
  default     = {}
  validation {
    condition = alltrue([for service in keys(var.endpoints) : contains([
      "budgets", "cloudcontrolapi", "cloudformation", "ec2", "ecr", "efs", "eks", "events", "fsx", "iam", "kms", "logs",
      "s3", "sqs", "ssm", "sts",
    ], service)])
    error_message = "Only budgets, cloudcontrolapi, cloudformation, ec2, ecr, efs, eks, events, fsx, iam, kms, logs, s3, sqs, ssm and sts can be set."
  }
}
