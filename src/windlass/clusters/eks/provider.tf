terraform {
  # The S3 backend supports lock files since Terraform 1.10.
  required_version = ">= 1.10"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.100, < 7"
    }
  }
}

locals {
  endpoints   = { for service, url in var.endpoints : service => url if try(length(url), 0) > 0 }
  is_emulated = length(local.endpoints) > 0
}

# Credentials come from the environment or AWS's own files; none are written here.
provider "aws" {
  region                      = var.region
  s3_use_path_style           = local.is_emulated
  skip_credentials_validation = local.is_emulated
  skip_region_validation      = local.is_emulated
  skip_metadata_api_check     = local.is_emulated ? "true" : null
  # With the default of 25, the provider would retry calls that an emulator lacks for minutes.
  max_retries = local.is_emulated ? 3 : null

  default_tags {
    tags = local.tags
  }

  dynamic "endpoints" {
    for_each = local.is_emulated ? [local.endpoints] : []
    content {
      budgets         = lookup(endpoints.value, "budgets", null)
      cloudcontrolapi = lookup(endpoints.value, "cloudcontrolapi", null)
      cloudformation  = lookup(endpoints.value, "cloudformation", null)
      ec2             = lookup(endpoints.value, "ec2", null)
      ecr             = lookup(endpoints.value, "ecr", null)
      efs             = lookup(endpoints.value, "efs", null)
      eks             = lookup(endpoints.value, "eks", null)
      events          = lookup(endpoints.value, "events", null)
      fsx             = lookup(endpoints.value, "fsx", null)
      iam             = lookup(endpoints.value, "iam", null)
      kms             = lookup(endpoints.value, "kms", null)
      logs            = lookup(endpoints.value, "logs", null)
      s3              = lookup(endpoints.value, "s3", null)
      sqs             = lookup(endpoints.value, "sqs", null)
      ssm             = lookup(endpoints.value, "ssm", null)
      sts             = lookup(endpoints.value, "sts", null)
    }
  }
}

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}
